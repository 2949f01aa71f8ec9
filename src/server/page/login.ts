import type { IncomingMessage } from 'node:http';
import { type Html, html } from './html.ts';
import { documentOf } from './layout.ts';
import { TOKEN_CHARS_MAX } from './access.ts';
import { SESSION_SECONDS } from './sessions.ts';

/**
 * With this prefix browsers accept the cookie only from this host, over TLS (or locally), for all
 * paths. Other hosts, and attackers on plain HTTP, cannot replace the session.
 */
const COOKIE = '__Host-longshore-session';
/** `token=`, a token with every third character escaped, and an address. */
const FORM_BYTES_MAX = 2.5 * TOKEN_CHARS_MAX;
const FORM_TYPE = 'application/x-www-form-urlencoded';

/** Strict: requests from other sites carry no session. */
export const sessionCookie = (id: string): string =>
  `${COOKIE}=${id}; Max-Age=${SESSION_SECONDS}; Path=/; Secure; HttpOnly; SameSite=Strict`;
export const NO_SESSION_COOKIE = `${COOKIE}=; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=Strict`;

/** The id of the session, if the request has one. */
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
 * Whether a form came from this server's own page. Browsers send the origin in headers that pages
 * cannot set. Other clients use the Authorization header.
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
  /** The address after the login: a path of this page. */
  readonly next: string;
}

/** Longer addresses are dropped at the login. */
const NEXT_CHARS_MAX = 2048;
/** Only paths of this page, and no address that a browser takes for another server. */
const NEXT = /^\/backups\/[^/\\\s?#]+\/files(?:\?[!-~]*)?$/;

/** The target of the login: the requested page of files, or the overview. */
export const nextOf = (path: string): string =>
  path.length <= NEXT_CHARS_MAX && NEXT.test(path) ? path : '/';

/** Parses a form; undefined if invalid or too long. The caller cuts off the unread rest. */
export async function loginFormOf(request: IncomingMessage): Promise<LoginForm | undefined> {
  const [type = ''] = (request.headers['content-type'] ?? '').split(';');
  if (type.trim().toLowerCase() !== FORM_TYPE) return undefined;
  const parts: Buffer[] = [];
  let bytes = 0;
  try {
    // Keep the connection, so that the visitor gets an answer.
    for await (const part of request.iterator({ destroyOnReturn: false })) {
      bytes += (part as Buffer).length;
      if (bytes > FORM_BYTES_MAX) return undefined;
      parts.push(part as Buffer);
    }
  } catch {
    // The connection broke or timed out: no answer is possible.
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

/** The page without login. Contains nothing of the cluster. */
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
