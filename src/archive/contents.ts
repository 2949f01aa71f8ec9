import { assert } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import {
  type ItemDirectory,
  itemPath,
  type ItemPlace,
  parseDirectory,
  VERSION_PATH,
} from './item-path.ts';
import { ScratchFile } from './scratch-file.ts';
import { CONTENT_LIMITS, type ContentLimits, readTarball } from './tarball.ts';

const SUFFIX = '.json';

/**
 * The items of a backup, to be asked for in any order. The tarball is unpacked into one file without a name: paths of an archive never become
 * names of files, whatever they are. In memory are the names of items and where they lie, some 100 bytes each.
 */
export class Contents implements AsyncDisposable {
  /** Of the format of the archive; `''` where an old one names none. */
  readonly formatVersion: string;
  readonly #file: ScratchFile;
  readonly #directories: ReadonlyMap<string, ReadonlyMap<string, number>>;
  /** Offset and length of each entry. */
  readonly #places: Places;

  private constructor(
    file: ScratchFile,
    directories: ReadonlyMap<string, ReadonlyMap<string, number>>,
    { places, formatVersion }: { places: Places; formatVersion: string },
  ) {
    this.#file = file;
    this.#directories = directories;
    this.#places = places;
    this.formatVersion = formatVersion;
  }

  /**
   * Reads a tarball to its end. Throws `DAMAGED_ARCHIVE` that names it, `SCRATCH_FULL`, `SCRATCH_FAILED`, and errors of the body.
   */
  static async open(
    body: Body,
    key: string,
    { directory, limits = CONTENT_LIMITS }: { directory: string; limits?: ContentLimits },
  ): Promise<Contents> {
    const file = await ScratchFile.create(directory);
    try {
      const directories = new Map<string, Map<string, number>>();
      const places = new Places();
      let formatVersion = '';
      for await (const { path, bytes } of readTarball(body, key, limits)) {
        if (path === VERSION_PATH) formatVersion = bytes.toString('utf8', 0, 100).trim();
        const at = path.lastIndexOf('/');
        const folder = path.slice(0, Math.max(at, 0));
        let names = directories.get(folder);
        if (!names) directories.set(folder, (names = new Map<string, number>()));
        // Bytes of its own: a part of a string keeps the whole of it.
        const name = Buffer.from(path.slice(at + 1)).toString();
        names.set(name, places.add(file.lengthBytes, bytes.length));
        await file.append(bytes);
      }
      file.finish();
      return new Contents(file, directories, { places, formatVersion });
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Whether it has resources at all: Velero warns of a backup that has none. */
  get isEmpty(): boolean {
    return this.#directories.keys().every((path) => parseDirectory(path) === undefined);
  }

  /** Where items are, sorted by path. */
  *directories(): Generator<ItemDirectory> {
    for (const path of [...this.#directories.keys()].sort()) {
      const directory = parseDirectory(path);
      if (directory) yield directory;
    }
  }

  /** Names of the items in a directory, sorted. */
  names(directory: ItemDirectory): string[] {
    const path = itemPath({ ...directory, name: '' });
    const names = this.#directories.get(path.slice(0, path.lastIndexOf('/')))?.keys() ?? [];
    return [...names]
      .filter((name) => name.endsWith(SUFFIX))
      .map((name) => name.slice(0, -SUFFIX.length))
      .sort();
  }

  has(place: ItemPlace): boolean {
    return this.#indexOf(itemPath(place)) !== undefined;
  }

  /** The bytes of an item; undefined where there is none. */
  async load(place: ItemPlace): Promise<Buffer | undefined> {
    const index = this.#indexOf(itemPath(place));
    if (index === undefined) return undefined;
    const [offset, length] = this.#places.at(index);
    const pieces = await Array.fromAsync(this.#file.read(offset, length));
    return Buffer.concat(pieces);
  }

  #indexOf(path: string): number | undefined {
    const at = path.lastIndexOf('/');
    return this.#directories.get(path.slice(0, at))?.get(path.slice(at + 1));
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Pairs of numbers, 16 bytes each. */
class Places {
  #numbers = new Float64Array(2048);
  #count = 0;

  add(offset: number, length: number): number {
    if (this.#count * 2 === this.#numbers.length) {
      const longer = new Float64Array(this.#numbers.length * 2);
      longer.set(this.#numbers);
      this.#numbers = longer;
    }
    this.#numbers.set([offset, length], this.#count * 2);
    return this.#count++;
  }

  at(index: number): [offset: number, length: number] {
    const [offset, length] = this.#numbers.subarray(index * 2, index * 2 + 2);
    assert(offset !== undefined && length !== undefined, 'an entry that is not there');
    return [offset, length];
  }
}
