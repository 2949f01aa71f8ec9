import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { RestoreRef } from '../../../archive/index.ts';
import { BlobNotFoundError, blobId } from '../../../blob/index.ts';
import { CodedError, isCode, lookup, randomHex } from '../../../base/index.ts';
import { CONFIG_MAPS, type ConfigMap, isSameJson, type KubeClient } from '../../../kube/index.ts';

export interface ClusterFilesOptions {
  readonly client: Pick<KubeClient, 'find' | 'create' | 'patch' | 'delete' | 'list'>;
  readonly namespace: string;
  readonly restore: RestoreRef;
}

/** The label of all ConfigMaps that keep files of a Restore. Its value is the Restore's UID. */
export const RESTORE_FILES_LABEL = 'longshore.io/restore-files';
const PREFIX = 'longshore-restore-';

/** etcd refuses requests above 1.5 MiB, and base64 adds a third. Our choice. */
const PAGE_BYTES_MAX = 768 << 10;
const PART_BYTES_MAX = 384 << 10;
/**
 * All files of a Restore. Our choice: etcd has 2 GiB for everything, and a restore of 10,000 items
 * takes 1 MiB.
 */
const ALL_BYTES_MAX = 16 << 20;
const JOURNAL_BYTES_MAX = 8 << 20;
/** Longer logs are not kept. Our choice. */
const FILE_BYTES_MAX = 4 << 20;
/** Each file takes 250 bytes of the index, which is a single ConfigMap. */
const FILES_MAX = 3000;
const JOURNAL_FILES_MAX = 2500;
/** Pages in memory while files are read. Our choice. */
const READ_PAGES_MAX = 4;

/** Tries to add a file while other processes change the index, which is rare. Our choice. */
const ADD_TRIES_MAX = 20;

const REASON = 'reason';
const APART = 'apart';
const entrySchema = z.object({
  key: z.string(),
  /** References to the parts of the file, in order. */
  parts: z.array(z.tuple([z.string(), z.string()])),
  bytes: z.int().nonnegative(),
  isLost: z.boolean().optional(),
});
type Entry = z.infer<typeof entrySchema>;

/** The index of the kept files. */
export interface ClusterIndex {
  /** Keys are relative to the folder of the restore. */
  readonly entries: ReadonlyMap<string, Entry>;
  /** Why the bucket refused the first of these files. */
  readonly reason: string | undefined;
  /** Whether the folder in the bucket belongs to another Restore. */
  readonly isApart: boolean;
}

interface WriteOptions {
  /** Why the bucket lacks the file. */
  readonly reason: string;
  readonly signal: AbortSignal | undefined;
}

interface PutOptions extends WriteOptions {
  /** Throws `BLOB_EXISTS` if the file exists. */
  readonly ifAbsent?: boolean | undefined;
}

const isOfJournal = (key: string): boolean => key.startsWith('longshore-journal/');

interface Page {
  readonly name: string;
  bytes: number;
  parts: number;
}

/**
 * Keeps files of one Restore in ConfigMaps if the bucket cannot be written. Pages hold the bytes,
 * and an index names the pages of each file. The index changes last, so readers see the old file or
 * the new one. The Restore owns all these ConfigMaps. Files that do not fit are noted as lost.
 */
export class ClusterFiles {
  readonly #options: ClusterFilesOptions;
  readonly #pages = new Map<string, Readonly<Record<string, string>>>();
  #entries: Map<string, Entry> | undefined;
  #reason: string | undefined;
  #isApart = false;
  /** The `resourceVersion` of the index as read; undefined if there was none. */
  #version: string | undefined;
  /** The page that receives journal segments. Other processes fill their own. */
  #page: Page | undefined;

  constructor(options: ClusterFilesOptions) {
    this.#options = options;
  }

  /** `isFresh`: read from the API server again. */
  async index(signal: AbortSignal | undefined, { isFresh = false } = {}): Promise<ClusterIndex> {
    if (!this.#entries || isFresh) {
      const found = await this.#options.client.find(CONFIG_MAPS, this.#ref(), { signal });
      this.#take(found);
    }
    const entries = this.#entries ?? new Map<string, Entry>();
    return { entries, reason: this.#reason, isApart: this.#isApart };
  }

  #take(found: ConfigMap | undefined): void {
    const { [REASON]: reason, [APART]: apart, ...rest } = found?.data ?? {};
    this.#reason = reason;
    this.#isApart = apart === 'true';
    this.#version = found?.metadata.resourceVersion;
    this.#entries = new Map(
      Object.values(rest).flatMap((text): [string, Entry][] => {
        const entry = entryOf(text);
        return entry ? [[entry.key, entry]] : [];
      }),
    );
  }

  /**
   * Notes that the folder in the bucket has files of another Restore. The note stays until the
   * Restore is deleted.
   */
  async setApart({ reason, signal }: WriteOptions): Promise<void> {
    this.#take(await this.#write({ [APART]: 'true' }, reason, signal));
  }

  /**
   * Replaces a file. Notes it as lost if it does not fit, or if `bytes` is undefined (too long).
   */
  async put(
    key: string,
    bytes: Buffer | undefined,
    { reason, signal, ifAbsent = false }: PutOptions,
  ): Promise<void> {
    const { entries } = await this.index(signal);
    const old = entries.get(key);
    if (ifAbsent && old) throw exists(key);
    const all = [...entries.values()].filter((entry) => entry !== old);
    // Readers of a journal stop at a gap.
    if (isOfJournal(key) && all.some((each) => each.isLost === true && isOfJournal(each.key)))
      return;
    const kept = bytes && fits(key, bytes.length, all) ? bytes : undefined;
    const parts: [string, string][] = [];
    for (let at = 0; at < (kept?.length ?? 0); at += PART_BYTES_MAX) {
      const part = kept?.subarray(at, at + PART_BYTES_MAX) ?? Buffer.alloc(0);
      // Only journal segments share pages. A server that replaces a file deletes its pages. A
      // shared page could hold a new part that the index does not name yet.
      parts.push(await this.#addPart(part, isOfJournal(key), signal));
    }
    const entry = { key, parts, bytes: kept?.length ?? 0, ...(!kept && { isLost: true }) };
    if (ifAbsent) {
      await this.#addEntry(entry, { reason, signal });
      return;
    }
    this.#take(await this.#write({ [nameOf(key)]: JSON.stringify(entry) }, reason, signal));
    if (old) await this.#removePages(old, signal);
  }

  /** If two processes add the same file at once, the later one throws `BLOB_EXISTS`. */
  async #addEntry(entry: Entry, { reason, signal }: WriteOptions): Promise<void> {
    const { client } = this.#options;
    const data = { [nameOf(entry.key)]: JSON.stringify(entry) };
    for (let tries = 1; ; tries++) {
      const resourceVersion = this.#version;
      const isNew = resourceVersion === undefined;
      try {
        const written = isNew
          ? await this.#createIndex(data, reason, signal)
          : await client.patch(
              CONFIG_MAPS,
              this.#ref(),
              { metadata: { resourceVersion }, data },
              { signal },
            );
        this.#take(written);
        return;
      } catch (error) {
        const isStale = isNew
          ? isCode(error, 'KUBE_ALREADY_EXISTS')
          : isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND');
        if (!isStale || tries === ADD_TRIES_MAX) throw error;
      }
      const { entries } = await this.index(signal, { isFresh: true });
      const found = entries.get(entry.key);
      // An earlier try succeeded, but its answer was lost.
      if (isSameJson(found, entry)) return;
      if (!found) continue;
      await this.#removePages(entry, signal);
      throw exists(entry.key);
    }
  }

  /** `isShared`: several files may have parts in the page. */
  async #addPart(
    part: Buffer,
    isShared: boolean,
    signal: AbortSignal | undefined,
  ): Promise<[string, string]> {
    const { client, namespace } = this.#options;
    const page = isShared ? this.#page : undefined;
    const data = part.toString('base64');
    if (page && page.bytes + part.length <= PAGE_BYTES_MAX) {
      const name = String(page.parts++);
      page.bytes += part.length;
      const ref = { namespace, name: page.name };
      try {
        await client.patch(CONFIG_MAPS, ref, { binaryData: { [name]: data } }, { signal });
        return [page.name, name];
      } catch (error) {
        if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
      }
    }
    const { uid } = this.#options.restore;
    const made = { name: `${PREFIX}${uid}-${randomHex(4)}`, bytes: part.length, parts: 1 };
    const page0 = { metadata: this.#metadata(made.name), binaryData: { '0': data } };
    await client.create(CONFIG_MAPS, page0, { signal });
    if (isShared) this.#page = made;
    return [made.name, '0'];
  }

  async #write(
    data: Record<string, string>,
    reason: string,
    signal: AbortSignal | undefined,
  ): Promise<ConfigMap> {
    const { client } = this.#options;
    const ref = this.#ref();
    try {
      return await client.patch(CONFIG_MAPS, ref, { data }, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
    try {
      return await this.#createIndex(data, reason, signal);
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      return await client.patch(CONFIG_MAPS, ref, { data }, { signal });
    }
  }

  #createIndex(
    data: Record<string, string>,
    reason: string,
    signal: AbortSignal | undefined,
  ): Promise<ConfigMap> {
    const { client } = this.#options;
    const made = {
      metadata: this.#metadata(this.#ref().name),
      data: { ...data, [REASON]: reason },
    };
    return client.create(CONFIG_MAPS, made, { signal });
  }

  #ref() {
    const { namespace, restore } = this.#options;
    return { namespace, name: `${PREFIX}${restore.uid}` };
  }

  #metadata(name: string) {
    const { namespace, restore } = this.#options;
    return {
      namespace,
      name,
      labels: { [RESTORE_FILES_LABEL]: restore.uid, 'velero.io/exclude-from-backup': 'true' },
      ownerReferences: [
        { apiVersion: 'velero.io/v1', kind: 'Restore', name: restore.name, uid: restore.uid },
      ],
    };
  }

  /** Throws `BLOB_NOT_FOUND`, also for a file that did not fit. */
  async get(key: string, signal: AbortSignal | undefined): Promise<Buffer> {
    // A page may be deleted because another process has just replaced the file.
    for (const isFresh of [false, true]) {
      const { entries } = await this.index(signal, { isFresh });
      const entry = entries.get(key);
      if (!entry || entry.isLost === true) break;
      const pieces: Buffer[] = [];
      for (const [page, name] of entry.parts) {
        const piece = await this.#part(page, name, signal);
        if (piece) pieces.push(piece);
      }
      if (pieces.length === entry.parts.length) return Buffer.concat(pieces);
    }
    throw new BlobNotFoundError(blobId(key));
  }

  async #part(
    page: string,
    name: string,
    signal: AbortSignal | undefined,
  ): Promise<Buffer | undefined> {
    let data = lookup(this.#pages.get(page), name);
    if (data === undefined) {
      const { client, namespace } = this.#options;
      const found = await client.find(CONFIG_MAPS, { namespace, name: page }, { signal });
      this.#pages.set(page, found?.binaryData ?? {});
      const [oldest] = this.#pages.keys();
      if (this.#pages.size > READ_PAGES_MAX && oldest !== undefined) this.#pages.delete(oldest);
      data = lookup(found?.binaryData, name);
    }
    return data === undefined ? undefined : Buffer.from(data, 'base64');
  }

  async delete(key: string, signal: AbortSignal | undefined): Promise<void> {
    const { entries } = await this.index(signal);
    const old = entries.get(key);
    if (!old) return;
    const { client } = this.#options;
    try {
      const change = { data: { [nameOf(key)]: null } };
      const left = await client.patch(CONFIG_MAPS, this.#ref(), change, { signal });
      this.#take(left);
      // Older answers to other deletions may arrive later.
      const isLast = this.#entries?.size === 0 && !this.#isApart;
      await this.#removePages(old, signal);
      if (!isLast) return;
      // Keep the index if another process has just added a file.
      const { resourceVersion } = left.metadata;
      await client.delete(CONFIG_MAPS, this.#ref(), { resourceVersion, signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
      this.#take(undefined);
    }
  }

  /** Deletes pages that no file in the index uses. */
  async #removePages({ parts }: Entry, signal: AbortSignal | undefined): Promise<void> {
    const { client, namespace } = this.#options;
    const used = [...(this.#entries?.values() ?? [])].flatMap((entry) => entry.parts);
    for (const name of new Set(parts.map(([page]) => page))) {
      if (used.some(([page]) => page === name)) continue;
      if (this.#page?.name === name) this.#page = undefined;
      this.#pages.delete(name);
      await client.delete(CONFIG_MAPS, { namespace, name }, { signal });
    }
  }

  /**
   * Deletes everything, also pages of a killed process. May be repeated: the note about another
   * Restore's files is left to the garbage collector.
   */
  async deleteAll(signal: AbortSignal | undefined): Promise<void> {
    const { client, namespace, restore } = this.#options;
    const { isApart } = await this.index(signal, { isFresh: true });
    const labelSelector = `${RESTORE_FILES_LABEL}=${restore.uid}`;
    const found = await client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
    for (const { metadata } of found) {
      if (isApart && metadata.name === this.#ref().name) continue;
      await client.delete(CONFIG_MAPS, { namespace, name: metadata.name }, { signal });
    }
    this.#page = undefined;
    this.#pages.clear();
    this.#entries = undefined;
  }
}

const exists = (key: string): CodedError =>
  new CodedError('BLOB_EXISTS', `${key} is there already`, { facts: { blobId: key } });

/** Keys of a ConfigMap cannot contain slashes. */
const nameOf = (key: string): string => createHash('sha256').update(key).digest('hex').slice(0, 32);

/** Undefined if the text was changed by others. */
function entryOf(text: string): Entry | undefined {
  try {
    return entrySchema.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

function fits(key: string, bytes: number, others: readonly Entry[]): boolean {
  const sum = (entries: readonly Entry[]): number =>
    entries.reduce((total, entry) => total + entry.bytes, bytes);
  const journal = others.filter((entry) => isOfJournal(entry.key));
  if (isOfJournal(key)) {
    return journal.length < JOURNAL_FILES_MAX && sum(journal) <= JOURNAL_BYTES_MAX;
  }
  return bytes <= FILE_BYTES_MAX && others.length < FILES_MAX && sum(others) <= ALL_BYTES_MAX;
}
