import { createHash } from 'node:crypto';

/** Both schemes have a contrast of at least 4.5 to 1. Colour is never the only mark. */
export const STYLE = `
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f6f8fa;--link:#0550ae;--good:#116329;--doubtful:#7d4e00;--bad:#a40e26;--good-soft:#dafbe1;--doubtful-soft:#fff3c4;--bad-soft:#ffebe9}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--dim:#9aa4af;--line:#30363d;--soft:#161b22;--link:#79b8ff;--good:#56d364;--doubtful:#e3b341;--bad:#ff8b83;--good-soft:#12261a;--doubtful-soft:#2b2310;--bad-soft:#2f1618}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
header,main,footer{max-width:75rem;margin:0 auto;padding:0 1rem}
header{padding-top:1rem;border-bottom:1px solid var(--line);padding-bottom:.5rem}
h1{font-size:1.5rem;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
a{color:var(--link)}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-100rem}
.skip:focus{left:1rem;top:.5rem;background:var(--page);padding:.25rem .5rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;list-style:none;margin:.5rem 0 0;padding:0}
.dim{color:var(--dim)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}
caption{text-align:left;color:var(--dim);padding:.25rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);min-width:4.5rem}
th,td{overflow-wrap:normal}
th bdi,td bdi,td code{overflow-wrap:anywhere}
td code{display:inline-block;min-width:6.5rem}
thead th,time,td .tone-good,td .tone-doubtful,td .tone-bad,td .tone-plain{white-space:nowrap}
thead th{color:var(--dim);font-weight:600}
tbody th{font-weight:600;min-width:9rem}
.number{text-align:right;font-variant-numeric:tabular-nums}
progress{width:8rem;max-width:100%;height:.8rem;vertical-align:middle;accent-color:var(--link)}
.tone-good{color:var(--good)}.tone-doubtful{color:var(--doubtful)}.tone-bad{color:var(--bad)}
.note,.problems li{border-left:.3rem solid var(--line);background:var(--soft);padding:.5rem .75rem;margin:.5rem 0}
.problems{list-style:none;padding:0;margin:0}
.problems li.tone-bad{border-color:var(--bad);background:var(--bad-soft);color:var(--text)}
.problems li.tone-doubtful,.note.tone-doubtful{border-color:var(--doubtful);background:var(--doubtful-soft);color:var(--text)}
.problems p{margin:0}
.figures{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1rem 0;padding:0;list-style:none}
.figures strong{font-size:1.3rem;display:block;font-variant-numeric:tabular-nums}
.calendar{table-layout:fixed;max-width:48rem}
.calendar th,.calendar td{min-width:0;text-align:center;padding:.25rem .1rem;border:1px solid var(--line)}
.calendar td.tone-good{background:var(--good-soft)}.calendar td.tone-doubtful{background:var(--doubtful-soft)}.calendar td.tone-bad{background:var(--bad-soft)}
.calendar .day{display:block;color:var(--dim);font-size:.8rem}
form{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:end;margin:.5rem 0}
label{display:block;color:var(--dim);font-size:.9rem}
input,select,button{font:inherit;color:inherit;background:var(--page);border:1px solid var(--dim);border-radius:.25rem;padding:.3rem .5rem;max-width:100%}
button{cursor:pointer;background:var(--soft)}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.25rem 1rem;margin:1rem 0}
dt{color:var(--dim)}dd{margin:0}
.pages{display:flex;gap:1rem;margin:.5rem 0}
code{font-family:ui-monospace,monospace;font-size:.93em}
footer{padding-top:2rem;padding-bottom:2rem;color:var(--dim);font-size:.9rem}
@media (max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}progress{width:5rem}h1{font-size:1.25rem}.wide table{min-width:66rem}.wide caption{padding-right:calc(68rem - 100vw)}}
@media (prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
`;

/**
 * Refreshes the page every ten seconds while it is visible and the visitor neither types nor
 * selects text. The page is complete without this script.
 */
export const SCRIPT = `
(() => {
  const EVERY_MS = 10000;
  const note = document.getElementById('refresh');
  let isBusy = false;
  let since = new Date();
  const refresh = async () => {
    const active = document.activeElement;
    const isUsed = active && active.matches('input,select,textarea');
    if (isBusy || document.hidden || isUsed || !getSelection().isCollapsed) return;
    isBusy = true;
    try {
      const answer = await fetch(location.pathname + location.search, { cache: 'no-store', redirect: 'error', signal: AbortSignal.timeout(8000) });
      if (answer.status === 401 || answer.status === 403) return location.reload();
      if (!answer.ok) throw new Error();
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, 'text/html').querySelector('main');
      const main = document.querySelector('main');
      if (!fresh || !main) return;
      const key = main.contains(active) ? active.getAttribute('href') || active.id : '';
      const places = [...main.querySelectorAll('.wide')].map((each) => [each.id, each.scrollLeft]);
      main.replaceWith(document.adoptNode(fresh));
      for (const [id, left] of places) {
        const each = id && document.getElementById(id);
        if (each) each.scrollLeft = left;
      }
      const again = key && [...fresh.querySelectorAll('a,[tabindex]')].find((each) => (each.getAttribute('href') || each.id) === key);
      if (again) again.focus({ preventScroll: true });
      since = new Date();
      note.textContent = '';
    } catch {
      note.textContent = 'This page could not be refreshed since ' + since.toLocaleTimeString() + '.';
    } finally {
      isBusy = false;
    }
  };
  setInterval(refresh, EVERY_MS);
})();
`;

const sourceOf = (text: string): string =>
  `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** The page loads nothing from elsewhere. Only this style and this script run. */
export const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  `style-src ${sourceOf(STYLE)}`,
  `script-src ${sourceOf(SCRIPT)}`,
  "connect-src 'self'",
  'img-src data:',
  "form-action 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ');
