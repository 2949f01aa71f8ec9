/** Builds a repository of millions of contents directly, as years of backups would have left it. */
import { createCipheriv } from 'node:crypto';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { Secret } from '../src/base/index.ts';
import { blobId, type BlobStorage, openStorage } from '../src/blob/index.ts';
import { SHARDS_NEW, shardPath } from '../src/blob/filesystem/sharding.ts';
import { splitterSpec } from '../src/codec/index.ts';
import {
  type ContentId,
  contentIdOf,
  createFormat,
  finishObject,
  type IndexEntry,
  type IndirectEntry,
  type ObjectId,
  openRepository,
  type Repository,
  writeObject,
} from '../src/repository/index.ts';
import { Pack } from '../src/repository/content/pack.ts';
import { sealBlob } from '../src/repository/content/sealed-blob.ts';
import { encodeIndex, sortEntries } from '../src/repository/index/index-writer.ts';
import { type DirectoryEntry, encodeDirectory, saveSnapshot } from '../src/snapshot/index.ts';

export interface LargeRepository {
  readonly contents: number;
  readonly snapshots: number;
  readonly files: number;
  /** Share of the files that differ from snapshot to snapshot. */
  readonly churn: number;
  /** Share of the contents that no snapshot reaches. */
  readonly collected: number;
}

export const PASSWORD = new Secret('bench');
const CLIENT = { username: 'bench', hostname: 'bench' };
const SESSION = 's0123456789abcdef147';
const LENGTH = 5000;
const PACK_CONTENTS = 4000;
const PACK_BYTES = 32 + PACK_CONTENTS * LENGTH;
const BLOB_ENTRIES_MAX = 100_000;
/** So that each epoch has some. */
const BLOBS_MIN = 20;
const FILES_IN_DIRECTORY = 100;
const DIRECTORIES_IN_PARENT = 32;
/** Share of replaced files in a directory that changes. */
const CHANGED_IN_DIRECTORY = 0.5;
/**
 * Unreached contents come in runs of so many snapshots, so that whole packs of them can be deleted.
 */
const SNAPSHOTS_IN_RUN = 10;
const SPLITTER = splitterSpec('FIXED-4M');
const WRITE_EPOCH = 10;
/**
 * Share of the contents that each epoch has; the range 0..7 has the rest. Epoch 8 is about to be
 * compacted.
 */
const EPOCH_SHARE = 0.1;
const SECONDS = 1_700_000_000;

const OBJECT = {
  prefix: 'k',
  compressor: undefined,
  metadataCompressor: undefined,
  splitter: SPLITTER,
  indexSplitter: SPLITTER,
} as const;
const COMMON = {
  mode: 0o644,
  mtimeNs: 1_700_000_000_123_456_789n,
  uid: 1000,
  gid: 1000,
} as const;
const SUMMARY = {
  size: 500_000,
  files: FILES_IN_DIRECTORY,
  symlinks: 0,
  dirs: 1,
  maxTimeNs: COMMON.mtimeNs,
  numFailed: 0,
};

/** Hashes by number: as good as random, and the same in each run. */
class Hashes {
  readonly #key = Buffer.alloc(16, 7);

  range(from: number, count: number): Buffer {
    const counter = Buffer.alloc(16);
    counter.writeBigUInt64BE(BigInt(from), 8);
    return createCipheriv('aes-128-ctr', this.#key, counter).update(Buffer.alloc(16 * count));
  }
}

const packName = (pack: number): string => `p${pack.toString(16).padStart(32, '0')}-${SESSION}`;

/**
 * Half of the files of some directories change from snapshot to snapshot. The other directories
 * stay the same objects. A hundredth of the files is large, which gives all versions together the
 * wanted number of contents. Our own writers write directories, indirect objects and manifests.
 * Packs of file data are sparse files of the right length: maintenance reads no pack that has an
 * index entry. Packs with only unreached contents have their own index at their end.
 */
export async function buildLargeRepository(path: string, wanted: LargeRepository): Promise<void> {
  await using storage = await openStorage(path, { create: true });
  await createFormat(storage, PASSWORD, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'FIXED-4M',
    version: 3,
  });
  for (let epoch = 1; epoch <= WRITE_EPOCH; epoch++) {
    await storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('epoch-marker')]);
  }
  await using repository = await openRepository({ storage, password: PASSWORD, client: CLIENT });
  const builder = new Builder(repository, storage, wanted);
  await builder.writeSnapshots();
  await builder.writeIndex();
  builder.writePacks(path);
  builder.writeTails(path);
}

class Builder {
  readonly #repository: Repository;
  readonly #storage: BlobStorage;
  readonly #wanted: LargeRepository;
  readonly #hashes = new Hashes();
  readonly #pieces: number;
  /** Numbers of contents that no snapshot reaches: `[from, to)`. */
  readonly #unreached: [number, number][] = [];
  #next = 0;
  #random = 42;

  constructor(repository: Repository, storage: BlobStorage, wanted: LargeRepository) {
    this.#repository = repository;
    this.#storage = storage;
    this.#wanted = wanted;
    const { contents, snapshots, files, churn, collected } = wanted;
    const versions = files * (1 + (snapshots - 1) * churn);
    // A hundredth of the files is large.
    this.#pieces = Math.max(2, Math.round(100 * ((contents * (1 - collected)) / versions - 0.99)));
  }

  async writeSnapshots(): Promise<void> {
    const { files, churn, collected, contents, snapshots } = this.#wanted;
    const leaves = Math.ceil(files / FILES_IN_DIRECTORY);
    const objects: (readonly DirectoryEntry[])[] = [];
    const changing = Math.round((leaves * churn) / CHANGED_IN_DIRECTORY);
    const directories: DirectoryEntry[] = [];
    for (let snapshot = 0; snapshot < snapshots; snapshot++) {
      const chosen =
        snapshot === 0
          ? Array.from({ length: leaves }, (_, leaf) => leaf)
          : Array.from({ length: changing }, () => this.#draw(leaves));
      for (const leaf of new Set(chosen)) {
        const before = objects[leaf];
        objects[leaf] = await this.#writeFiles(before, snapshot);
        directories[leaf] = await this.#writeDirectory(`leaf-${leaf}`, objects[leaf]);
      }
      const parents: DirectoryEntry[] = [];
      for (let at = 0; at < leaves; at += DIRECTORIES_IN_PARENT) {
        const part = directories.slice(at, at + DIRECTORIES_IN_PARENT);
        parents.push(await this.#writeDirectory(`parent-${at}`, part));
      }
      const rootEntry = await this.#writeDirectory('bench', parents);
      this.#save(rootEntry, snapshot);
      if (snapshot % SNAPSHOTS_IN_RUN < SNAPSHOTS_IN_RUN - 1 && snapshot < snapshots - 1) continue;
      const share = ((snapshot + 1) / snapshots) * collected * contents;
      const sofar = this.#unreached.reduce((sum, [from, to]) => sum + to - from, 0);
      const count = Math.round(share - sofar);
      this.#unreached.push([this.#next, (this.#next += count)]);
      await this.#repository.contents.flush();
    }
    await this.#repository.flush();
  }

  /** From a fixed seed. */
  #draw(below: number): number {
    this.#random = (Math.imul(this.#random, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((this.#random / 2 ** 32) * below);
  }

  async #writeFiles(
    before: readonly DirectoryEntry[] | undefined,
    snapshot: number,
  ): Promise<DirectoryEntry[]> {
    const files: DirectoryEntry[] = [];
    for (let i = 0; i < FILES_IN_DIRECTORY; i++) {
      const old = before?.[i];
      if (old && (i + snapshot) % 2 === 1) {
        files.push(old);
        continue;
      }
      const isLarge = i === 0;
      const objectId = isLarge ? await this.#writeLarge() : this.#take(1)[0];
      const size = (LENGTH - 28) * (isLarge ? this.#pieces : 1);
      const name = `file-${String(i).padStart(3, '0')}`;
      files.push({ ...COMMON, name, type: 'f', size, objectId: objectId as string as ObjectId });
    }
    return files;
  }

  #take(count: number): ContentId[] {
    const hashes = this.#hashes.range(this.#next, count);
    this.#next += count;
    return Array.from({ length: count }, (_, i) =>
      contentIdOf('', hashes.subarray(16 * i, 16 * i + 16)),
    );
  }

  #writeLarge(): Promise<ObjectId> {
    const length = LENGTH - 28;
    const pieces = this.#take(this.#pieces).map((id, i): IndirectEntry => ({
      start: i * length,
      length,
      id: id as string as ObjectId,
      count: 1,
    }));
    return finishObject(this.#repository.contents, pieces, { ...OBJECT, prefix: '' });
  }

  async #writeDirectory(name: string, entries: readonly DirectoryEntry[]): Promise<DirectoryEntry> {
    const bytes = encodeDirectory(entries, SUMMARY);
    const objectId = await writeObject(this.#repository.contents, [bytes], OBJECT);
    return { ...COMMON, mode: 0o755, name, type: 'd', size: 0, objectId, summary: SUMMARY };
  }

  #save(rootEntry: DirectoryEntry, snapshot: number): void {
    const timeNs = COMMON.mtimeNs + BigInt(snapshot) * 3_600_000_000_000n;
    saveSnapshot(this.#repository, {
      source: { host: 'bench', userName: 'bench', path: '/bench' },
      description: '',
      startTimeNs: timeNs,
      endTimeNs: timeNs,
      stats: {
        totalSize: 0,
        excludedTotalSize: 0,
        fileCount: this.#wanted.files,
        cachedFiles: 0,
        nonCachedFiles: 0,
        dirCount: 0,
        excludedFileCount: 0,
        excludedDirCount: 0,
        ignoredErrorCount: 0,
        errorCount: 0,
      },
      incomplete: undefined,
      rootEntry,
      tags: {},
      pins: undefined,
    });
  }

  #entries(from: number, count: number): IndexEntry[] {
    const hashes = this.#hashes.range(from, count);
    return Array.from({ length: count }, (_, i) => ({
      contentId: contentIdOf('', hashes.subarray(16 * i, 16 * i + 16)),
      packBlobId: packName(Math.floor((from + i) / PACK_CONTENTS)),
      packOffset: 32 + ((from + i) % PACK_CONTENTS) * LENGTH,
      packedLength: LENGTH,
      originalLength: LENGTH - 28,
      timestampSeconds: SECONDS,
      deleted: false,
      formatVersion: 3,
      compressionHeaderId: 0,
      encryptionKeyId: 0,
    }));
  }

  async writeIndex(): Promise<void> {
    const total = this.#next;
    const perBlob = Math.min(BLOB_ENTRIES_MAX, Math.ceil(total / BLOBS_MIN));
    const blobs = Math.ceil(total / perBlob);
    const ofEpoch = Math.floor(blobs * EPOCH_SHARE);
    const ofRange = blobs - 3 * ofEpoch;
    for (let blob = 0; blob < blobs; blob++) {
      const at = blob * perBlob;
      const entries = this.#entries(at, Math.min(perBlob, total - at));
      const epoch = WRITE_EPOCH - 2 + Math.floor((blob - ofRange) / Math.max(1, ofEpoch));
      const [prefix, suffix] =
        blob < ofRange
          ? ['xr0_7_', `-s0123456789abcdef-c${ofRange}`]
          : [`xn${epoch}_`, `-${SESSION}-c1`];
      const body = encodeIndex(2, sortEntries(entries));
      const { id, bytes } = sealBlob(this.#repository.codec, prefix, suffix, body);
      await this.#storage.putBlob(id, [bytes]);
    }
  }

  writePacks(path: string): void {
    const made = new Set<string>();
    for (let pack = 0; pack * PACK_CONTENTS < this.#next; pack++) {
      const file = fileOf(path, packName(pack));
      if (!made.has(dirname(file))) fs.mkdirSync(dirname(file), { recursive: true });
      made.add(dirname(file));
      fs.writeFileSync(file, '');
      fs.truncateSync(file, PACK_BYTES);
    }
  }

  /** Own indexes of the packs that nothing is in but unreached contents. */
  writeTails(path: string): void {
    const { codec, random } = this.#repository;
    const buffer = Buffer.alloc(PACK_BYTES);
    for (const [from, to] of this.#unreached) {
      for (let at = Math.ceil(from / PACK_CONTENTS); (at + 1) * PACK_CONTENTS <= to; at++) {
        const id = blobId(packName(at));
        const pack = new Pack(id, buffer, new Uint8Array(0), random);
        pack.advance(PACK_CONTENTS * LENGTH);
        pack.entries.push(...this.#entries(at * PACK_CONTENTS, PACK_CONTENTS));
        const [, ...tail] = pack.finish({ ...codec, indexVersion: 2, random });
        fs.appendFileSync(fileOf(path, id), Buffer.concat(tail));
      }
    }
  }
}

const fileOf = (path: string, id: string): string =>
  `${join(path, ...shardPath(SHARDS_NEW, id))}.f`;
