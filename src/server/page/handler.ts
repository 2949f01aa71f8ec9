import type { IncomingMessage, ServerResponse } from 'node:http';
import {
  type Clock,
  isCode,
  type Logger,
  messageOf,
  redactAndCut,
  Secret,
} from '../../base/index.ts';
import type { Access, Verdict } from './access.ts';
import { type Answer, away, notFound, ok, plain, redirect } from './responses.ts';
import { backupDocument } from './backup-page.ts';
import { sendDownload, SILENT_MS } from './files/download.ts';
import { FilesHandler, type FilesOptions } from './files/files-handler.ts';
import { listingQueryOf } from './listing.ts';
import {
  bearerOf,
  isFromOwnPage,
  loginDocument,
  loginFormOf,
  LOGOUT_FORM,
  nextOf,
  NO_SESSION_COOKIE,
  sessionCookie,
  sessionIdOf,
} from './login.ts';
import type { RunRow } from './rows.ts';
import { hasMessages, type MessageSource } from './run-parts.ts';
import { overviewDocument, type PageOptions } from './overview.ts';
import { restoreDocument } from './restore-page.ts';
import { Sessions } from './sessions.ts';
import { CONTENT_SECURITY_POLICY } from './style.ts';
import type { PageView } from './view.ts';
import type { VolumeSource } from './volumes.ts';

export interface PageHandlerOptions {
  readonly view: Pick<PageView, 'look'>;
  readonly volumes: Pick<VolumeSource, 'of'>;
  /** Undefined if stored errors and warnings are not shown. */
  readonly messages?: MessageSource | undefined;
  readonly access: Access;
  /** A token must have one of these audiences. The login page names them. */
  readonly audiences?: readonly string[];
  /** Undefined if files of backups are not shown. */
  readonly files?: FilesOptions | undefined;
  readonly logger: Logger;
  readonly clock: Clock;
  /** Whether the page is reachable only from this machine or pod: then it needs no login. */
  readonly isLoopback: boolean;
}

const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy': CONTENT_SECURITY_POLICY,
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  // With `no-referrer`, browsers would also hide the origin of a form.
  'referrer-policy': 'same-origin',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
  'cache-control': 'no-store',
};
/** Stops DNS rebinding: a foreign name that points to this machine appears in the Host header. */
const LOOPBACK_HOST = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?$/i;
const RUN_PATH = /^\/(backups|restores)\/([^/]+)$/;
const FILES_PATH = /^\/backups\/([^/]+)\/(files|download)$/;

/** Answers requests of the status page. Changes nothing except sessions. */
export class PageHandler {
  readonly #options: PageHandlerOptions;
  readonly #sessions: Sessions;
  readonly #files: FilesHandler | undefined;

  constructor(options: PageHandlerOptions) {
    this.#options = options;
    this.#files = options.files && new FilesHandler(options.files);
    this.#sessions = new Sessions(options.clock);
  }

  /** For `node:http`. Never rejects. */
  readonly handle = (request: IncomingMessage, response: ServerResponse): void => {
    const gone = new AbortController();
    response.once('close', () => {
      gone.abort();
    });
    const answered = this.#answerSafely(request, gone.signal).then(async (answer) => {
      const { status, body, headers, download } = answer;
      // The rest of an unread body must not be parsed as the next request.
      const isRead = request.complete;
      const isHead = request.method === 'HEAD';
      try {
        if (gone.signal.aborted) return;
        response.writeHead(status, {
          ...HEADERS,
          ...(!download && { 'content-length': Buffer.byteLength(body) }),
          ...headers,
          ...(!isRead && { connection: 'close' }),
        });
        if (!download || isHead) response.end(isHead ? undefined : body);
        else await sendDownload(response, download.bytes, gone.signal);
      } finally {
        download?.end();
      }
    });
    answered.catch((error: unknown) => {
      response.destroy();
      const { logger } = this.#options;
      logger.warn({ error: redactAndCut(messageOf(error)) }, 'status page: a download was cut off');
    });
  };

  async #answerSafely(request: IncomingMessage, gone: AbortSignal): Promise<Answer> {
    try {
      return await this.#answer(request, gone);
    } catch (error) {
      if (gone.aborted) return plain(499, 'Gone', 'The visitor has gone.');
      if (isCode(error, 'NOT_READ_YET')) return away('The cluster', messageOf(error));
      // No headers and no address: they may contain a token.
      this.#options.logger.error({ error: messageOf(error) }, 'status page: a request failed');
      return plain(
        500,
        'Not shown',
        'This page could not be made; the log of the server says why.',
      );
    }
  }

  async #answer(request: IncomingMessage, gone: AbortSignal): Promise<Answer> {
    const { isLoopback } = this.#options;
    const { method = '', headers } = request;
    if (isLoopback && !LOOPBACK_HOST.test(headers.host ?? '')) {
      return plain(403, 'Not shown', 'This page is only for this machine, and by a name of it.');
    }
    const url = urlOf(request);
    if (!url) return plain(400, 'Not understood', 'The address of this request cannot be read.');
    // On a loopback address the page needs no login, but files do.
    if (method === 'POST' && (!isLoopback || this.#files)) {
      if (url.pathname === '/login') return this.#login(request);
      if (url.pathname === '/logout') return this.#logout(request);
    }
    if (method !== 'GET' && method !== 'HEAD') {
      const answer = plain(405, 'Not possible', 'This page can only be read.');
      return { ...answer, headers: { allow: 'GET, HEAD' } };
    }
    const id = sessionIdOf(request);
    const files = this.#files ? FILES_PATH.exec(url.pathname) : null;
    if (isLoopback && !files) return this.#page(url, id !== undefined && !!this.#files);
    const token = bearerOf(request) ?? (id && this.#sessions.tokenOf(id)?.reveal());
    const next = files ? nextOf(url.pathname + url.search) : '/';
    if (token === undefined || token === '') return this.#unauthorized(undefined, next);
    const verdict = await this.#options.access.verdictOf(token);
    if (verdict !== 'allowed') return this.#refused(verdict, next);
    if (!files || !this.#files) return this.#page(url, id !== undefined);
    const [, name = '', verb] = files;
    const { backupsByName, nowMs } = await this.#options.view.look();
    const backup = backupsByName.get(decoded(name) ?? '');
    if (!backup) return notFound(NO_BACKUP);
    // The normal limit is for pages in memory; reads from a bucket take longer.
    request.socket.setTimeout(SILENT_MS);
    return this.#files.answer({
      url,
      token,
      backup,
      nowMs,
      signal: gone,
      verb: verb === 'download' ? 'download' : 'files',
      isHead: method === 'HEAD',
      logout: id === undefined ? undefined : LOGOUT_FORM,
    });
  }

  async #page(url: URL, hasSession: boolean): Promise<Answer> {
    const { view, volumes, messages } = this.#options;
    const [, kind, encoded] = RUN_PATH.exec(url.pathname) ?? [];
    if (url.pathname !== '/' && encoded === undefined) return notFound('There is no such page.');
    const world = await view.look();
    const options: PageOptions = {
      world,
      volumesOf: ({ kind, name, uid }) => volumes.of({ kind, name, uid }),
      hasFiles: this.#files !== undefined,
      logout: hasSession ? LOGOUT_FORM : undefined,
    };
    const query = listingQueryOf(url.searchParams);
    if (encoded === undefined) return ok(overviewDocument(options, query));
    const name = decoded(encoded) ?? '';
    const withMessages = async (run: RunRow, location: string): Promise<PageOptions> => ({
      ...options,
      messages: hasMessages(run) ? await messages?.of(run, location) : undefined,
    });
    if (kind === 'backups') {
      const backup = world.backupsByName.get(name);
      if (!backup) return notFound(NO_BACKUP);
      return ok(backupDocument(await withMessages(backup, backup.location), backup, query.page));
    }
    const restore = world.restoresByName.get(name);
    if (!restore) return notFound(NO_RESTORE);
    const location = world.backupsByName.get(restore.of)?.location ?? '';
    return ok(restoreDocument(await withMessages(restore, location), restore, query.page));
  }

  async #login(request: IncomingMessage): Promise<Answer> {
    if (!isFromOwnPage(request)) {
      return plain(403, 'Refused', 'Only the page of this server itself may log somebody in.');
    }
    const form = await loginFormOf(request);
    if (form === undefined) return this.#unauthorized('That was no token.');
    const { token, next } = form;
    const verdict = await this.#options.access.verdictOf(token);
    if (verdict !== 'allowed') return this.#refused(verdict, next);
    const id = this.#sessions.begin(new Secret(token));
    const location = this.#files ? next : '/';
    return { ...redirect(), headers: { location, 'set-cookie': sessionCookie(id) } };
  }

  #logout(request: IncomingMessage): Answer {
    const id = sessionIdOf(request);
    if (!isFromOwnPage(request)) {
      return plain(403, 'Refused', 'Only the page of this server itself may log somebody out.');
    }
    if (id !== undefined) this.#sessions.end(id);
    return { ...redirect(), headers: { location: '/', 'set-cookie': NO_SESSION_COOKIE } };
  }

  #unauthorized(problem?: string, next?: string): Answer {
    const headers = { 'www-authenticate': 'Bearer realm="longshore"' };
    const [audience] = this.#options.audiences ?? [];
    return { status: 401, body: loginDocument({ problem, next, audience }), headers };
  }

  /** The reasons name no objects of the cluster. */
  #refused(verdict: Exclude<Verdict, 'allowed'>, next: string): Answer {
    switch (verdict) {
      case 'unknown':
        return this.#unauthorized(
          'The cluster does not know this token, it is not for this page, or it has expired.',
          next,
        );
      case 'forbidden':
        return plain(
          403,
          'Not allowed',
          "This page is for those who may list all kinds of Velero's objects that it shows.",
        );
      case 'away':
        return away('This page', 'the API server did not say who may see it');
    }
  }
}

const NO_RESTORE = 'There is no restore of this name; it may have been deleted.';
const NO_BACKUP = 'There is no backup of this name; it may have been deleted.';

function urlOf({ url = '' }: IncomingMessage): URL | undefined {
  // Accept only a path, not the absolute URL of a proxy request.
  if (!url.startsWith('/') || url.startsWith('//')) return undefined;
  return URL.canParse(url, 'http://page') ? new URL(url, 'http://page') : undefined;
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}
