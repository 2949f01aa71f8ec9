import {
  codeOf,
  createLimiter,
  isCanceled,
  isCode,
  type Limiter,
  messageOf,
  redactAndCut,
  retryOf,
  Semaphore,
} from '../../../base/index.ts';
import type { Access } from '../access.ts';
import { type Answer, away, notFound, ok, plain } from '../responses.ts';
import type { Html } from '../html.ts';
import type { RunRow } from '../rows.ts';
import type { BackupFiles, BrowsedBackup, FilePlace, OpenEntry } from './contract.ts';
import {
  directoryDocument,
  fileDocument,
  type FilesPageOptions,
  volumesDocument,
} from './documents.ts';
import { fileQueryOf, listFiles } from './listing.ts';

export interface FilesOptions {
  readonly source: BackupFiles;
  /** Decides who may browse a backup. */
  readonly access: Access;
}

/** A request for files by an allowed visitor of the page. */
export interface FilesRequest {
  readonly url: URL;
  readonly verb: 'files' | 'download';
  readonly token: string;
  readonly backup: RunRow;
  readonly isHead: boolean;
  readonly nowMs: number;
  readonly logout: Html | undefined;
  /** Aborts when the visitor disconnects. */
  readonly signal: AbortSignal;
}

/** Our choices: four downloads take 260 MiB (measured, pieces of 8 MiB), a listing some 20 MiB. */
const DOWNLOADS_MAX = 4;
/** Per location: a hanging bucket delays only its own visitors. */
const LISTINGS_MAX = 2;
const WAITING_MAX = 32;
/** Time limit for a page, including the queue. */
const LISTING_MS = 60_000;
/** No file system allows longer links. */
const LINK_BYTES_MAX = 64 << 10;
/** Twice PATH_MAX of Linux, for names that Kopia has made longer. */
const PATH_CHARS_MAX = 8192;

/** Serves directories and files of volumes to users who may browse the backup. */
export class FilesHandler {
  readonly #options: FilesOptions;
  /** By location. Unused limiters are removed. */
  readonly #listings = new Map<string, Limiter>();
  readonly #downloads = new Semaphore(DOWNLOADS_MAX);

  constructor(options: FilesOptions) {
    this.#options = options;
  }

  /** Throws errors of the source that are no answer to a visitor. */
  async answer(request: FilesRequest): Promise<Answer> {
    const { backup, token } = request;
    const verdict = await this.#options.access.verdictOf(token, backup.name);
    if (verdict === 'away') {
      return away('Files of this backup', 'the API server did not say who may see them');
    }
    if (verdict !== 'allowed') {
      const text = `Files of a backup are for those who have the verb "browse" on its object: resource backups of the group velero.io.`;
      return plain(403, 'Not allowed', text);
    }
    const place = placeOf(request.url.searchParams);
    if (place === 'too long') return plain(400, 'Not understood', 'This path is too long.');
    try {
      if (request.verb === 'download') return await this.#download(request, place);
      return await this.#look(request, place);
    } catch (error) {
      if (request.signal.aborted) throw error;
      return answerTo(error);
    }
  }

  async #look(request: FilesRequest, place: FilePlace | undefined): Promise<Answer> {
    const { location } = request.backup;
    const limiter = this.#listings.get(location) ?? createLimiter(LISTINGS_MAX);
    this.#listings.set(location, limiter);
    if (limiter.pending >= WAITING_MAX) return away('Files', 'so many others are looking at some');
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(LISTING_MS)]);
    try {
      return await limiter.run(() => this.#pageOf(request, place, signal));
    } finally {
      if (limiter.pending === 0) this.#listings.delete(location);
    }
  }

  async #pageOf(
    { url, nowMs, logout, backup: row }: FilesRequest,
    place: FilePlace | undefined,
    signal: AbortSignal,
  ): Promise<Answer> {
    // The visitor may have left while in the queue.
    signal.throwIfAborted();
    const { source } = this.#options;
    const backup = browsedOf(row);
    const page: FilesPageOptions = { backup: backup.name, nowMs, logout };
    if (!place) return ok(volumesDocument(page, await source.volumesOf(backup, signal)));
    using open = await source.open(backup, place, signal);
    if (open.entry.type === 'd') {
      const query = fileQueryOf(url.searchParams);
      const { isSorted } = open;
      const listing = await listFiles((skip) => open.list(signal, skip), query, { isSorted });
      return ok(directoryDocument(page, { ...place, open }, listing, query));
    }
    const target = open.entry.type === 's' ? await targetOf(open, signal) : undefined;
    return ok(fileDocument(page, { ...place, open }, target));
  }

  async #download(request: FilesRequest, place: FilePlace | undefined): Promise<Answer> {
    if (!place) return notFound('Only a volume, or what is in one, can be downloaded.');
    if (!this.#downloads.tryAcquire()) {
      const why = `${DOWNLOADS_MAX} downloads are running, and that is as many as there may be`;
      return away('This file', why, 30);
    }
    const ends = new DisposableStack();
    ends.defer(() => {
      this.#downloads.release();
    });
    try {
      const { url, signal, isHead } = request;
      const open = ends.use(
        await this.#options.source.open(browsedOf(request.backup), place, signal),
      );
      const answer = downloadOf(open, place, url.searchParams.get('as') === 'tar', signal);
      if (!answer.download || isHead) {
        ends.dispose();
        return answer;
      }
      const end = (): void => {
        ends.dispose();
      };
      return { ...answer, download: { ...answer.download, end } };
    } catch (error) {
      ends.dispose();
      throw error;
    }
  }
}

const browsedOf = ({ name, uid, location }: RunRow): BrowsedBackup => ({ name, uid, location });

/** Undefined without a volume. */
function placeOf(parameters: URLSearchParams): FilePlace | 'too long' | undefined {
  const volume = parameters.get('volume') ?? '';
  const text = parameters.get('path') ?? '';
  if (volume === '') return undefined;
  if (text.length > PATH_CHARS_MAX) return 'too long';
  const path = text.split('/').filter((name) => name !== '');
  const objectId = parameters.get('object') ?? undefined;
  return { volume, path, objectId };
}

function downloadOf(
  open: OpenEntry,
  { volume, path }: FilePlace,
  isTar: boolean,
  signal: AbortSignal,
): Answer {
  const { entry, deviceBytes = entry.sizeBytes } = open;
  if (!['d', 'f', 's'].includes(entry.type)) {
    return notFound('It is neither a file, a directory nor a symbolic link: nothing is stored.');
  }
  if (!isTar && entry.type !== 'f' && open.deviceBytes === undefined) {
    return notFound('Only a file has bytes of its own; this can be downloaded as tar.');
  }
  const name = downloadName(path.at(-1) ?? volume, isTar ? '.tar' : '');
  const headers = {
    // Never a type that browsers render: the volume's writer could create a page of this server.
    'content-type': isTar ? 'application/x-tar' : 'application/octet-stream',
    'content-disposition': contentDisposition(name),
    'content-security-policy': "default-src 'none'; sandbox",
    // Lets clients detect a cut connection.
    ...(!isTar && { 'content-length': String(deviceBytes) }),
  };
  const bytes = isTar ? open.tar(signal) : open.bytes(signal);
  return { status: 200, body: '', headers, download: { bytes, end: () => undefined } };
}

async function targetOf(open: OpenEntry, signal: AbortSignal): Promise<string> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of open.bytes(signal)) {
    pieces.push(piece);
    length += piece.length;
    if (length > LINK_BYTES_MAX) break;
  }
  return Buffer.concat(pieces).toString('utf8', 0, LINK_BYTES_MAX);
}

const GONE: readonly string[] = ['NO_VOLUME', 'PATH_NOT_FOUND', 'SNAPSHOT_NOT_FOUND'];

/** Users who may browse the backup may see the reason. Throws bugs. */
function answerTo(error: unknown): Answer {
  const code = codeOf(error);
  if (isCanceled(error) || (error instanceof Error && error.name === 'TimeoutError')) {
    const seconds = LISTING_MS / 1000;
    return away('This', `it was not read within ${seconds} seconds; the bucket may be slow`);
  }
  if (code === undefined) throw error;
  const why = redactAndCut(messageOf(error));
  if (isCode(error, 'NOT_BROWSABLE')) return plain(409, 'No files', `${why}.`);
  if (GONE.includes(code)) return notFound(`${why}.`);
  if (isCode(error, 'REPOSITORIES_BUSY') || retryOf(error) === 'backoff') return away('This', why);
  return plain(502, 'Not readable', `This cannot be read: ${why}.`);
}

/** In bytes. Below the limit of file systems, with room for a browser's suffix. */
const NAME_BYTES_MAX = 200;
/** Replaced: control, invisible and direction marks, and what paths or Windows do not allow. */
const UNFIT =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0\ufe00-\ufe0f\\/:*?"<>|]/gu;
/** RFC 8187, section 3.2.1: attr-char. All others are escaped. */
const NOT_ATTR_CHAR = /[^A-Za-z0-9!#$&+.^_`|~-]/g;
const ENCODER = new TextEncoder();

/** A safe name for a download, with its ending: no path, hidden file or faked ending. */
export function downloadName(name: string, ending = ''): string {
  const plain = name
    .toWellFormed()
    .normalize('NFC')
    .replaceAll(UNFIT, '_')
    // Hidden on some systems, cut off on others.
    .replace(/^[. ]+/, '_')
    .replace(/[. ]+$/, '_');
  const fit = cutToBytes(plain, NAME_BYTES_MAX - ending.length);
  return `${fit === '' ? 'file' : fit}${ending}`;
}

/**
 * The Content-Disposition header for a name of {@link downloadName}: RFC 6266, with RFC 8187 and a
 * plain name for old clients.
 */
export function contentDisposition(name: string): string {
  const ascii = name.replaceAll(/[^\w.\- ]/g, '_');
  const start = `attachment; filename="${ascii}"`;
  return ascii === name ? start : `${start}; filename*=UTF-8''${extValue(name)}`;
}

function extValue(name: string): string {
  return Array.from(ENCODER.encode(name), (byte) => {
    const char = String.fromCharCode(byte);
    const isPlain = byte < 0x80 && char.search(NOT_ATTR_CHAR) < 0;
    return isPlain ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }).join('');
}

/** Cuts at whole characters. */
function cutToBytes(text: string, bytesMax: number): string {
  if (ENCODER.encode(text).length <= bytesMax) return text;
  let bytes = 0;
  let cut = '';
  for (const char of text) {
    bytes += ENCODER.encode(char).length;
    if (bytes > bytesMax) break;
    cut += char;
  }
  return cut;
}
