import { isUtf8 } from 'node:buffer';
import { type Dir, lstatSync, opendirSync, realpathSync, statSync } from 'node:fs';
import { joinPath, silentLogger } from '../../base/index.ts';
import type { Policy } from '../../snapshot/index.ts';
import { CACHE_TAG_NAME, enterRules, isCacheDirectory } from '../upload/directory-rules.ts';
import { IgnoreRules } from '../listing/ignore-rules.ts';
import { entryAt, type SourceEntry, storedName } from '../listing/listing.ts';
import { relativePath, type Visit } from '../upload/directory-visit.ts';

/** Names read at a time from one directory. */
const DIRENTS = 256;
/** Waiting names, some 100 bytes each. Further directories are entered before their siblings. */
const WAITING_MAX = 20_000;
/** Directories that are open at once. The upload needs descriptors too. */
const OPEN_MAX = 16;
/** Entries between two checks of the clock. */
const LOOK_EVERY = 64;

export interface SourceCount {
  files: number;
  bytes: number;
}

/** Policies as plain values: for the root, and for directories below, by relative path. */
export interface CountPolicies {
  readonly root: Pick<Policy, 'files'>;
  readonly below: ReadonlyMap<string, Pick<Policy, 'files' | 'noParent'>>;
}

export interface CountOptions {
  readonly policies: CountPolicies;
  /** Called every {@link LOOK_EVERY} entries with the counts. False ends the count. */
  readonly onCount: (count: Readonly<SourceCount>, entries: number) => boolean;
  /** Waiting names of directories; tests lower it. */
  readonly waitingMax?: number;
}

/**
 * Counts the files and bytes that an upload of this path would store, by the same rules. Lists one
 * directory after the other, in bounded memory. Resolves with undefined if the count was ended.
 * Throws system errors of the root. Unreadable entries below count as nothing, because the upload
 * reports them.
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
  /** From the policies above. */
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

  /** Returns false if the count was ended. */
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
      // The directory was removed, or is unreadable.
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

  /** The place inside a directory; undefined if none of its entries are stored. */
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
      // The upload does not store a directory with unreadable rules either.
      return undefined;
    }
  }

  /** Counts a file. Returns true for a directory to enter. */
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

/** A fast status: called for each file. */
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
  /** Some file systems list names without types. */
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
