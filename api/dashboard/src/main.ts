import './app.css';
import { mount } from 'svelte';
import App from './App.svelte';
import { choices } from './client/session.svelte';

// Before the first paint, to avoid a flash of the wrong theme.
if (choices.theme !== 'system') document.documentElement.dataset.theme = choices.theme;

// A page from before an update requests files that are gone. Reloads once, because a server
// that is unavailable has no new page either.
addEventListener('vite:preloadError', (event) => {
  const before = Number(sessionStorage.getItem('hopline.reloaded'));
  if (Date.now() - before < 30_000) return;
  sessionStorage.setItem('hopline.reloaded', String(Date.now()));
  event.preventDefault();
  location.reload();
});

mount(App, { target: document.getElementById('app')! });
