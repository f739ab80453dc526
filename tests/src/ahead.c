/* Preloaded into a process, lets its clock run ahead by SECONDS_AHEAD; how long things take stays as it is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    const char *ahead = getenv("SECONDS_AHEAD");
    if (!failed && clock == CLOCK_REALTIME && ahead)
        now->tv_sec += atol(ahead);
    return (int)failed;
}
