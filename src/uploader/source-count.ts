import { isUtf8 } from 'node:buffer';
import { type Dir, lstatSync, opendirSync, realpathSync, statSync } from 'node:fs';
import { joinPath, silentLogger } from '../base/index.ts';
import type { Policy } from '../snapshot/index.ts';
import { CACHE_TAG_NAME, enterRules, isCacheDirectory } from './directory-rules.ts';
import { IgnoreRules } from './ignore-rules.ts';
import { entryAt, type SourceEntry, storedName } from './listing.ts';
import { relativePath, type Visit } from './visit.ts';

/** Names read at a time of one directory. */
const DIRENTS = 256;
/**
 * Names of directories that wait for their turn, some 100 bytes each; further ones are entered
 * while their parent is open.
 */
const WAITING_MAX = 20_000;
/**
 * Directories that are open at once. Descriptors are shared with the upload, which must not run out
 * of them.
 */
const OPEN_MAX = 16;
/** Entries between two looks at the clock. */
const LOOK_EVERY = 64;

export interface SourceCount {
  files: number;
  bytes: number;
}

/**
 * Policies as plain values: of the root, and those defined for directories below it by their
 * relative path.
 */
export interface CountPolicies {
  readonly root: Pick<Policy, 'files'>;
  readonly below: ReadonlyMap<string, Pick<Policy, 'files' | 'noParent'>>;
}

export interface CountOptions {
  readonly policies: CountPolicies;
  /** Called every {@link LOOK_EVERY} entries with what was counted so far. False ends the count. */
  readonly onCount: (count: Readonly<SourceCount>, entries: number) => boolean;
  /** Names of directories that wait at once; tests lower it. */
  readonly waitingMax?: number;
}

/**
 * Counts the files that an upload of this path would store, and their bytes, by the same rules. It
 * lists one directory after the other, in bounded memory. Resolves with undefined where it was
 * ended, and throws what the system says of the root. What cannot be read below counts as nothing:
 * the upload tells of it.
 */
export async function countSource(
  path: string,
  options: CountOptions,
): Promise<SourceCount | undefined> {
  const real = realpathSync(path);
  const root = statSync(real, { bigint: true });
  if (!root.isDirectory()) return { files: 1, bytes: Number(root.size) };
  const counter = new SourceCounter(options);
  const isWhole = await counter.enter({
    visit: {
      path: real,
      relative: '',
      previous: [],
      rules: IgnoreRules.none,
      attributes: { mtimeNs: 0n, device: root.dev, sizeBytes: 0 },
    },
    ignoreCacheDirs: true,
  });
  return isWhole ? counter.count : undefined;
}

interface Place {
  readonly visit: Visit;
  /** As the policies above have it. */
  readonly ignoreCacheDirs: boolean;
}

type RawName = string | Uint8Array;

class SourceCounter {
  readonly count: SourceCount = { files: 0, bytes: 0 };
  readonly #options: CountOptions;
  readonly #waitingMax: number;
  #entries = 0;
  #waiting = 0;
  #open = 0;

  constructor(options: CountOptions) {
    this.#options = options;
    this.#waitingMax = options.waitingMax ?? WAITING_MAX;
  }

  /** False when the count was ended. */
  async enter(place: Place): Promise<boolean> {
    const inside = await this.#insideOf(place);
    if (!inside) return true;
    let directory: Dir;
    try {
      directory = openDirectory(place.visit.path);
    } catch {
      return true;
    }
    this.#open++;
    const waiting: RawName[] = [];
    try {
      for (let name = nextName(directory); name; name = nextName(directory)) {
        if (++this.#entries % LOOK_EVERY === 0 && !this.#goesOn()) return false;
        if (!this.#look(inside, name)) continue;
        if (this.#waiting < this.#waitingMax) {
          waiting.push(name.raw);
          this.#waiting++;
        } else if (this.#open >= OPEN_MAX || !(await this.#descend(inside, name.raw))) {
          return false;
        }
      }
    } catch {
      // It went away or cannot be read to its end.
    } finally {
      directory.closeSync();
      this.#open--;
    }
    while (waiting.length > 0) {
      this.#waiting--;
      if (!(await this.#descend(inside, waiting.pop() as RawName))) return false;
    }
    return true;
  }

  #goesOn(): boolean {
    return this.#options.onCount(this.count, this.#entries);
  }

  /** What holds inside a directory; undefined where nothing of it is stored. */
  async #insideOf({ visit, ignoreCacheDirs }: Place): Promise<Place | undefined> {
    const { root, below } = this.#options.policies;
    const definedAt = (path: string): Policy | undefined =>
      (path === '' ? root : below.get(path)) as Policy | undefined;
    const own = definedAt(visit.relative);
    const inherited = below.get(visit.relative)?.noParent === true ? true : ignoreCacheDirs;
    const ignores = own?.files.ignoreCacheDirs ?? inherited;
    const names = [
      ...(ignores ? [CACHE_TAG_NAME] : []),
      ...(own?.files.ignoreDotFiles ?? []),
      ...visit.rules.dotIgnoreFiles,
    ];
    const entries = [...new Set(names)].flatMap((name) => lookAt(visit.path, name) ?? []);
    const special = { entries, failures: [], renamed: [], unread: [] };
    const files = { ignoreCacheDirs: ignores };
    if (await isCacheDirectory(visit, special, { files })) return undefined;
    try {
      const rules = await enterRules(visit, special, {
        policies: { definedAt },
        logger: silentLogger,
      });
      return { visit: { ...visit, rules }, ignoreCacheDirs: ignores };
    } catch {
      // Nor is it stored where its rules cannot be read.
      return undefined;
    }
  }

  /** Counts a file. True for a directory that is to be entered. */
  #look({ visit: { path, relative, rules, attributes } }: Place, name: ListedName): boolean {
    if (name.kind === 'other') return false;
    let { kind } = name;
    const ignores = (isDirectory: boolean): boolean => {
      if (rules.isEmpty) return false;
      const stored = storedName(name.raw);
      return rules.ignores(relative === '' ? stored : `${relative}/${stored}`, isDirectory);
    };
    if (kind !== 'unknown' && ignores(kind === 'd')) return false;
    if (kind === 'd' && !rules.oneFileSystem) return true;
    const found = sizeOf(path, name.raw);
    if (!found || found.kind === 'other') return false;
    if (kind === 'unknown') {
      kind = found.kind;
      if (ignores(kind === 'd')) return false;
    }
    if (rules.oneFileSystem && found.device !== Number(attributes.device)) return false;
    if (found.kind === 'd') return true;
    if (rules.maxFileBytes > 0 && found.sizeBytes > rules.maxFileBytes) return false;
    this.count.files++;
    this.count.bytes += found.sizeBytes;
    return false;
  }

  #descend({ visit, ignoreCacheDirs }: Place, raw: RawName): Promise<boolean> {
    return this.enter({
      visit: {
        ...visit,
        path: joinPath(visit.path, raw),
        relative: relativePath(visit, storedName(raw)),
      },
      ignoreCacheDirs,
    });
  }
}

function lookAt(path: RawName, name: RawName): SourceEntry | undefined {
  const full = joinPath(path, name);
  try {
    const stat = lstatSync(typeof full === 'string' ? full : Buffer.from(full), { bigint: true });
    const fields = [stat.mode, stat.size, stat.mtimeNs, stat.uid, stat.gid, stat.dev];
    return entryAt(name, (k) => fields[k] as bigint, undefined);
  } catch {
    return undefined;
  }
}

/** Of each file: no more than is needed. */
function sizeOf(
  path: RawName,
  name: RawName,
): { kind: 'f' | 'd' | 'other'; sizeBytes: number; device: number } | undefined {
  const full = joinPath(path, name);
  try {
    const stat = lstatSync(typeof full === 'string' ? full : Buffer.from(full), {
      throwIfNoEntry: false,
    });
    if (!stat) return undefined;
    const kind = stat.isFile() ? 'f' : stat.isDirectory() ? 'd' : 'other';
    return { kind, sizeBytes: stat.size, device: stat.dev };
  } catch {
    return undefined;
  }
}

interface ListedName {
  readonly raw: RawName;
  /** Some file systems do not tell it with the name. */
  readonly kind: 'f' | 'd' | 'other' | 'unknown';
}

const openDirectory = (path: RawName): Dir =>
  opendirSync(typeof path === 'string' ? path : Buffer.from(path), {
    encoding: 'buffer' as BufferEncoding,
    bufferSize: DIRENTS,
  });

function nextName(directory: Dir): ListedName | undefined {
  const entry = directory.readSync();
  if (!entry) return undefined;
  const name = entry.name as unknown as Buffer;
  const raw = isUtf8(name) ? name.toString() : Uint8Array.from(name);
  if (entry.isFile()) return { raw, kind: 'f' };
  if (entry.isDirectory()) return { raw, kind: 'd' };
  const isOther =
    entry.isSymbolicLink() ||
    entry.isFIFO() ||
    entry.isSocket() ||
    entry.isBlockDevice() ||
    entry.isCharacterDevice();
  return { raw, kind: isOther ? 'other' : 'unknown' };
}
