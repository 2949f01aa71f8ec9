import type { IncomingMessage } from 'node:http';
import { type Html, html } from './html.ts';
import { documentOf } from './layout.ts';
import { TOKEN_CHARS_MAX } from './access.ts';
import { SESSION_SECONDS } from './sessions.ts';

/**
 * The prefix makes browsers take it from this very host only, over TLS (or from this machine), for
 * all of its paths: no other host, and nobody who changes plain HTTP on its way, can put a session
 * of theirs in its place.
 */
const COOKIE = '__Host-longshore-session';
/** `token=`, and a token whose every third character is escaped; with an address beside it. */
const FORM_BYTES_MAX = 2.5 * TOKEN_CHARS_MAX;
const FORM_TYPE = 'application/x-www-form-urlencoded';

/** Strict: other sites' pages and links send no request with a session. */
export const sessionCookie = (id: string): string =>
  `${COOKIE}=${id}; Max-Age=${SESSION_SECONDS}; Path=/; Secure; HttpOnly; SameSite=Strict`;
export const NO_SESSION_COOKIE = `${COOKIE}=; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=Strict`;

/** The id of a session, where the request has one. */
export function sessionIdOf({ headers }: IncomingMessage): string | undefined {
  for (const pair of (headers.cookie ?? '').split(';')) {
    const at = pair.indexOf('=');
    if (pair.slice(0, at).trim() !== COOKIE) continue;
    const id = pair.slice(at + 1).trim();
    if (/^[\w-]{43}$/.test(id)) return id;
  }
  return undefined;
}

export const bearerOf = ({ headers }: IncomingMessage): string | undefined =>
  /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1];

/**
 * Whether a form was sent by this server's own page. Browsers say where a request comes from in
 * headers that no page can set; whoever says nothing is no browser, and has the Authorization
 * header.
 */
export function isFromOwnPage({ headers }: IncomingMessage): boolean {
  const site = headers['sec-fetch-site'];
  if (site !== undefined) return site === 'same-origin';
  const { origin, host } = headers;
  if (origin === undefined || host === undefined) return false;
  return URL.canParse(origin) && new URL(origin).host === host.toLowerCase();
}

export interface LoginForm {
  readonly token: string;
  /** Where the visitor wanted to go: a path of this page. */
  readonly next: string;
}

/** Of addresses that somebody follows; longer ones are forgotten by the login. */
const NEXT_CHARS_MAX = 2048;
/** Of this page, and nothing that a browser would take for another server. */
const NEXT = /^\/backups\/[^/\\\s?#]+\/files(?:\?[!-~]*)?$/;

/** What the login leads to: the page of files that was asked for, else the overview. */
export const nextOf = (path: string): string =>
  path.length <= NEXT_CHARS_MAX && NEXT.test(path) ? path : '/';

/**
 * What a login form has; undefined where the request is none, or too long. What is not read is the
 * caller's to cut off.
 */
export async function loginFormOf(request: IncomingMessage): Promise<LoginForm | undefined> {
  const [type = ''] = (request.headers['content-type'] ?? '').split(';');
  if (type.trim().toLowerCase() !== FORM_TYPE) return undefined;
  const parts: Buffer[] = [];
  let bytes = 0;
  try {
    // Who sent too much is to hear of it.
    for await (const part of request.iterator({ destroyOnReturn: false })) {
      bytes += (part as Buffer).length;
      if (bytes > FORM_BYTES_MAX) return undefined;
      parts.push(part as Buffer);
    }
  } catch {
    // The connection broke, or its time was over: nobody is there to be answered.
    return undefined;
  }
  const form = new URLSearchParams(Buffer.concat(parts).toString('utf8'));
  const token = form.get('token')?.trim() ?? '';
  return token === '' ? undefined : { token, next: nextOf(form.get('next') ?? '') };
}

interface LoginPrompt {
  readonly problem?: string | undefined;
  readonly next?: string | undefined;
  readonly audience?: string | undefined;
}

/** What anybody sees who has not logged in. It says nothing of the cluster. */
export const loginDocument = ({ problem, next = '/', audience }: LoginPrompt): string =>
  documentOf({
    title: 'Log in',
    isLive: false,
    header: html`<h1>Log in</h1>`,
    main: html`${problem !== undefined && html`<p class="note tone-doubtful" role="alert">${problem}</p>`}
      <p>This page needs a token of the cluster, of somebody who may list Velero's objects.</p>
      <form method="post" action="/login">
        <div>
          <label for="token">Token</label>
          <input id="token" name="token" type="password" autocomplete="off" required />
        </div>
        ${next !== '/' && html`<input type="hidden" name="next" value="${next}" />`}
        <button type="submit">Log in</button>
      </form>
      <p class="dim">
        For example:
        <code
          >kubectl create token ACCOUNT${audience !== undefined && ` --audience=${audience}`}</code
        >. Programs send it in the header Authorization.
      </p>`,
  });

export const LOGOUT_FORM: Html = html`<form method="post" action="/logout">
  <button type="submit">Log out</button>
</form>`;
