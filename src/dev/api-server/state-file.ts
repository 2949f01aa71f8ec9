import * as fs from 'node:fs';
import { dirname } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  asError,
  CodedError,
  type Logger,
  messageOf,
  systemClock,
  writeAllSync,
} from '../../base/index.ts';
import type { SavedState, Stored, StoredChange } from './store.ts';

const FORMAT = 'longshore-dev-state';
const FORMAT_VERSION = 1;
/** Rewrites the file above CHANGES_FACTOR times the size of its state, plus CHANGES_BYTES. */
const CHANGES_BYTES = 4 << 20;
const CHANGES_FACTOR = 2;
/** Maximum size to read. Twice the limit of the store, with its changes. */
const STATE_BYTES_MAX = 512 << 20;
const NEWLINE = '\n';

interface Header {
  readonly format: string;
  readonly formatVersion: number;
  /** The newest change in the objects below it. */
  readonly version: number;
}
type Line =
  | Header
  | { readonly put: string; readonly object: Stored }
  | { readonly gone: string; readonly key: string; readonly version: number };

export interface StateFileOptions {
  readonly path: string;
  readonly logger: Logger;
}

/**
 * Keeps the objects of a cluster in a file between runs. All objects come first, then each change,
 * written before a client learns of it. Each line has a checksum. Only the user can read the file,
 * because it contains Secrets.
 */
export class StateFile {
  readonly #options: StateFileOptions;
  /** All objects, for a rewrite. */
  #source: (() => SavedState) | undefined;
  #descriptor: number;
  #length = 0;
  #rewriteAt = 0;
  #broken: Error | undefined;

  private constructor(options: StateFileOptions, descriptor: number) {
    this.#options = options;
    this.#descriptor = descriptor;
  }

  /**
   * Reads the file; a missing file is an empty state. An incomplete last line was never confirmed
   * to a client. The line is dropped, and a copy of the file is kept. Throws `DAMAGED_STATE` for
   * all other damage and does not change the file.
   */
  static open(options: StateFileOptions): { file: StateFile; saved: SavedState | undefined } {
    const saved = load(options);
    const file = new StateFile(options, -1);
    file.#rewrite(saved ?? { version: 1, objects: [] });
    return { file, saved };
  }

  /** Sets the source of the objects for a rewrite. */
  attach(source: () => SavedState): void {
    this.#source = source;
  }

  /** Throws if the change could not be written. The file is then unchanged. */
  append(change: StoredChange): void {
    if (this.#broken !== undefined) throw this.#broken;
    const bytes = Buffer.from(encode(lineOf(change)));
    try {
      writeAllSync(this.#descriptor, bytes, this.#length);
      this.#length += bytes.length;
    } catch (error) {
      try {
        // Half a line in the middle of the file would count as damage.
        fs.ftruncateSync(this.#descriptor, this.#length);
      } catch {
        this.#broken = asError(error);
      }
      throw error;
    }
  }

  /** Rewrites the file if its changes have grown. Call it between changes. */
  tidy(): void {
    if (this.#length < this.#rewriteAt || this.#source === undefined) return;
    try {
      this.#rewrite(this.#source());
    } catch (error) {
      this.#rewriteAt = this.#length + CHANGES_BYTES;
      this.#options.logger.warn(
        { file: this.#options.path, error: messageOf(error) },
        'the state of the cluster could not be rewritten; changes are still appended to the old file',
      );
    }
  }

  close(): void {
    if (this.#descriptor >= 0) fs.closeSync(this.#descriptor);
    this.#descriptor = -1;
    this.#broken = new CodedError('STATE_CLOSED', 'the cluster is being stopped');
  }

  #rewrite(state: SavedState): void {
    const { path } = this.#options;
    const partial = `${path}.partial`;
    // Creates a new file. Never reuses a file that others opened, and never follows a link.
    fs.rmSync(partial, { force: true });
    const descriptor = fs.openSync(partial, 'wx', 0o600);
    let length = 0;
    try {
      for (const text of encodedState(state)) {
        const bytes = Buffer.from(text);
        writeAllSync(descriptor, bytes, length);
        length += bytes.length;
      }
      fs.fsyncSync(descriptor);
      fs.renameSync(partial, path);
      syncDirectory(dirname(path));
    } catch (error) {
      fs.closeSync(descriptor);
      fs.rmSync(partial, { force: true });
      throw error;
    }
    if (this.#descriptor >= 0) fs.closeSync(this.#descriptor);
    this.#descriptor = descriptor;
    this.#length = length;
    this.#rewriteAt = length * CHANGES_FACTOR + CHANGES_BYTES;
  }
}

function syncDirectory(path: string): void {
  const descriptor = fs.openSync(path, 'r');
  try {
    fs.fsyncSync(descriptor);
  } finally {
    fs.closeSync(descriptor);
  }
}

const lineOf = (change: StoredChange): Line =>
  change.type === 'put'
    ? { put: change.resource, object: change.object }
    : { gone: change.resource, key: change.key, version: change.version };

function encode(line: Line): string {
  const text = JSON.stringify(line);
  return `${checksumOf(text)} ${text}${NEWLINE}`;
}

const checksumOf = (text: string): string => crc32(text).toString(16).padStart(8, '0');

function* encodedState({ version, objects }: SavedState): Generator<string> {
  yield encode({ format: FORMAT, formatVersion: FORMAT_VERSION, version });
  for (const { resource, object } of objects) yield encode({ put: resource, object });
}

function load({ path, logger }: StateFileOptions): SavedState | undefined {
  const text = read(path);
  if (text === undefined) return undefined;
  const lines = text.split(NEWLINE);
  const rest = lines.pop() ?? '';
  if (rest !== '') setAside(path, logger);
  const [first, ...changes] = lines.map((line, index) => decode(path, line, index + 1));
  if (first === undefined) {
    throw damaged(path, 'it has no first line');
  }
  if (!('format' in first) || first.format !== FORMAT)
    throw damaged(path, 'it does not hold the state of a cluster');
  if (first.formatVersion !== FORMAT_VERSION) {
    throw damaged(path, `it is of version ${first.formatVersion}, which this program cannot read`);
  }
  let { version } = first;
  const objects = new Map<string, { resource: string; object: Stored }>();
  changes.forEach((line, index) => {
    if ('put' in line) {
      const { namespace = '', name, resourceVersion } = line.object.metadata;
      objects.set(`${line.put} ${namespace}/${name}`, { resource: line.put, object: line.object });
      version = Math.max(version, Number(resourceVersion));
    } else if ('gone' in line) {
      objects.delete(`${line.gone} ${line.key}`);
      version = Math.max(version, line.version);
    } else throw damaged(path, `line ${index + 2} is not a change`);
  });
  return { version, objects: [...objects.values()] };
}

function read(path: string): string | undefined {
  let descriptor: number;
  try {
    descriptor = fs.openSync(path, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw damaged(path, messageOf(error));
  }
  try {
    const stat = fs.fstatSync(descriptor);
    if (!stat.isFile()) throw damaged(path, 'it is not a regular file');
    if (stat.size > STATE_BYTES_MAX) throw damaged(path, 'it is too large');
    return fs.readFileSync(descriptor, 'utf8');
  } finally {
    fs.closeSync(descriptor);
  }
}

function decode(path: string, line: string, number: number): Line {
  const text = line.slice(9);
  if (line.slice(0, 9) !== `${checksumOf(text)} `) throw damaged(path, `line ${number} is damaged`);
  const parsed = JSON.parse(text) as Line;
  if ('put' in parsed && !isKept(parsed.object)) {
    throw damaged(path, `line ${number} holds no object`);
  }
  return parsed;
}

const isKept = (object: Partial<Stored> | undefined): boolean =>
  typeof object?.metadata?.name === 'string' &&
  typeof object.metadata.uid === 'string' &&
  Number.isSafeInteger(Number(object.metadata.resourceVersion));

/** The last write was incomplete: the process was killed, or the machine stopped. */
function setAside(path: string, logger: Logger): void {
  const copy = `${path}.${systemClock.nowNs() / 1_000_000n}.damaged`;
  fs.copyFileSync(path, copy, fs.constants.COPYFILE_EXCL);
  fs.chmodSync(copy, 0o600);
  logger.warn(
    { file: path, copy },
    'the last change of the cluster was only half written and is left out; the copy holds the file as it was',
  );
}

function damaged(path: string, why: string): CodedError {
  const text = `the state of the cluster in ${path} cannot be read: ${why}; nothing was changed. Move the file away to start with an empty cluster (volumes and repositories stay), or use another --directory`;
  return new CodedError('DAMAGED_STATE', text);
}
