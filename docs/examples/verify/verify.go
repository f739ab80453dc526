// Checks the signature of a webhook. Needs Go 1.19 or later and nothing else.
//
//	WEBHOOK_SECRET=whsec_... go run verify.go "$X_SERVICE_SIGNATURE" < body
//
// Prints "verified" and exits with 0, or "NOT VERIFIED" and 1. A second argument is the time to judge by, in Unix
// seconds.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A signed request that is older (or newer) than this is refused: somebody may have recorded it.
const toleranceSeconds = 300

// Verify tells whether header signs the bytes body with secret, at about the time now in Unix seconds.
//
// The header is "t=<unix seconds>,v1=<hex>"; while a secret is being rotated it has a second v1. The body must be the
// bytes as they came: JSON that was parsed and written again may differ.
func Verify(secret, header string, body []byte, now int64) bool {
	var times, signatures []string
	for _, part := range strings.Split(header, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "t":
			times = append(times, value)
		case "v1":
			signatures = append(signatures, value)
		}
	}
	if len(times) != 1 || len(times[0]) > 14 {
		return false
	}
	t, err := strconv.ParseUint(times[0], 10, 63)
	if err != nil || now-int64(t) > toleranceSeconds || int64(t)-now > toleranceSeconds {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(times[0] + "."))
	mac.Write(body)
	expected := []byte(hex.EncodeToString(mac.Sum(nil)))
	verified := false
	for _, signature := range signatures {
		// Equal takes the same time wherever the first difference is.
		if hmac.Equal(expected, []byte(signature)) {
			verified = true
		}
	}
	return verified
}

func main() {
	header, now := "", time.Now().Unix()
	if len(os.Args) > 1 {
		header = os.Args[1]
	}
	if len(os.Args) > 2 {
		given, err := strconv.ParseInt(os.Args[2], 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		now = given
	}
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !Verify(os.Getenv("WEBHOOK_SECRET"), header, body, now) {
		fmt.Println("NOT VERIFIED")
		os.Exit(1)
	}
	fmt.Println("verified")
}
