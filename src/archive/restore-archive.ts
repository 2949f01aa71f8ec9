import { z } from 'zod';
import type { Bucket, ObjectOptions, SignalOptions } from '../blob/index.ts';
import { isCode } from '../base/index.ts';
import { deleteFolder, type DeletionOptions } from './delete-folder.ts';
import { loadList } from './stored-archive.ts';
import {
  namesIn,
  type ResourceList,
  resourceListSchema,
  type ResourceNames,
  type Results,
  RESULTS,
  resultsSchema,
} from './file-schemas.ts';
import { gunzipped } from './gzip.ts';
import {
  decodeJson,
  decodeJsonGzip,
  encodeJsonGzip,
  encodeListsGzip,
  wholeOf,
} from './json-file.ts';
import { type LogTailOptions, putLogTail } from './log-tail.ts';
import {
  moverLogsFolder,
  type RestoreFile,
  restoreFolder,
  restoreJournalFolder,
  restoreKey,
} from './layout.ts';
import type { ScratchFile } from './scratch-file.ts';
import { assertNotApart, keepsApart, seal, sealedEnd, unseal } from './write-once/sealed-bucket.ts';
import {
  RESTORE_VOLUME_INFO,
  type RestoreVolumeInfo,
  restoreVolumeInfoSchema,
} from './volume-infos.ts';

export interface RestoreFiles {
  readonly itemOperations?: readonly object[];
  /** Compressed; stays the caller's. */
  readonly log?: ScratchFile;
  readonly results?: Results;
  readonly resourceList?: ResourceList | ResourceNames;
  readonly volumeInfos?: readonly RestoreVolumeInfo[];
}

/** Names the owner of a folder. Two clusters may have Restores of one name in one bucket. */
export interface RestoreRef {
  readonly name: string;
  readonly uid: string;
}

const ownerSchema = z.looseObject({ restoreUID: z.string().min(1) });
const operationSchema = z.looseObject({ spec: z.looseObject({ restoreUID: z.string().min(1) }) });
/** Our choice: an owner file has 100 bytes. */
const OWNER_BYTES_MAX = 64 << 10;
/** Our choice, like the limits of these files. The finalizer would refuse longer ones. */
const SIGN_BYTES_MAX = 64 << 20;

/** Files of restores, with Velero 1.18's layout. No single file stands for a whole restore. */
export class RestoreArchive {
  readonly #bucket: Bucket;

  constructor(bucket: Bucket) {
    this.#bucket = bucket;
  }

  /**
   * Stores operations first: without them, a restore would seem to have none. `assertAllowed`:
   * called before each file, because another process may have stored newer ones. Throws its errors,
   * and errors of the bucket.
   */
  async put(
    name: string,
    files: RestoreFiles,
    { assertAllowed, ...options }: DeletionOptions = {},
  ): Promise<void> {
    const putBytes = async (file: RestoreFile, bytes: Buffer): Promise<void> => {
      assertAllowed?.();
      await this.#bucket.put(restoreKey(name, file), [bytes], options);
    };
    const put = async (file: RestoreFile, value: unknown): Promise<void> =>
      putBytes(file, await encodeJsonGzip(value));
    const { itemOperations, log, results, resourceList, volumeInfos } = files;
    if (itemOperations) await put('itemOperations', itemOperations);
    if (log) {
      assertAllowed?.();
      await this.#bucket.put(restoreKey(name, 'log'), log.read(), options);
    }
    if (results) await put('results', RESULTS(results));
    if (resourceList) {
      await putBytes('resourceList', await encodeListsGzip(namesIn(resourceList)));
    }
    if (volumeInfos) await put('volumeInfos', volumeInfos.map(RESTORE_VOLUME_INFO));
  }

  /** `[]` without a file. Throws `DAMAGED_ARCHIVE`, and errors of the bucket. */
  async loadItemOperations<S extends z.ZodType>(
    name: string,
    element: S,
    options: ObjectOptions = {},
  ): Promise<z.infer<S>[]> {
    return loadList(this.#bucket, restoreKey(name, 'itemOperations'), element, options);
  }

  /** Adds lines to the log after the run, in place of earlier additions. See {@link putLogTail}. */
  async setLogTail(name: string, text: string, options: LogTailOptions): Promise<void> {
    await putLogTail(this.#bucket, restoreKey(name, 'log'), text, options);
  }

  /** Ours: notes of a run for the finalizer, which knows their schema. */
  async putAfterRun(name: string, value: object, options: SignalOptions = {}): Promise<void> {
    const bytes = await encodeJsonGzip(value);
    await this.#bucket.put(restoreKey(name, 'afterRun'), [bytes], options);
  }

  /** Undefined without a file. Throws `DAMAGED_ARCHIVE`, for example for more than `bytesMax`. */
  async loadAfterRun<S extends z.ZodType>(
    name: string,
    schema: S,
    { bytesMax, ...options }: ObjectOptions & { readonly bytesMax: number },
  ): Promise<z.infer<S> | undefined> {
    const key = restoreKey(name, 'afterRun');
    try {
      return await decodeJson(
        gunzipped(this.#bucket.get(key, options), { key, bytesMax }),
        key,
        schema,
      );
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  /**
   * The UID of the Restore that owns the files; undefined if no file names it. Velero's files name
   * it only if the restore has item operations. Throws errors of the bucket.
   */
  async ownerOf(name: string, options: SignalOptions = {}): Promise<string | undefined> {
    const owner = await this.#sign(restoreKey(name, 'owner'), ownerSchema, options);
    if (owner) return owner.restoreUID;
    const left = await this.#sign(restoreKey(name, 'afterRun'), ownerSchema, options);
    if (left) return left.restoreUID;
    const key = restoreKey(name, 'itemOperations');
    const operations = await this.#sign(key, z.array(operationSchema), options);
    return operations?.[0]?.spec.restoreUID;
  }

  /** Undefined if the file is missing or damaged: another file may name the owner. */
  async #sign<S extends z.ZodType>(
    key: string,
    schema: S,
    options: SignalOptions,
  ): Promise<z.infer<S> | undefined> {
    const body = this.#bucket.get(key, options);
    const isPlain = key.endsWith('.json');
    try {
      const text = isPlain
        ? [await wholeOf(body, key, OWNER_BYTES_MAX)]
        : gunzipped(body, { key, bytesMax: SIGN_BYTES_MAX });
      return await decodeJson(text, key, schema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return undefined;
      throw error;
    }
  }

  /**
   * Claims the folder for this Restore when its run begins. Returns false if the folder has older
   * files of another or an unknown Restore. Repeatable. Throws errors of the bucket.
   */
  async claim({ name, uid }: RestoreRef, options: DeletionOptions = {}): Promise<boolean> {
    const { assertAllowed, ...rest } = options;
    const key = restoreKey(name, 'owner');
    const known = await this.#sign(key, ownerSchema, rest);
    if (known) return known.restoreUID === uid;
    if (!(await this.#isFree({ name, uid }, rest))) return false;
    assertAllowed?.();
    const bytes = Buffer.from(`${JSON.stringify({ version: 1, restoreUID: uid })}\n`);
    try {
      await this.#bucket.put(key, [bytes], { ...rest, ifAbsent: true });
      return true;
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS')) throw error;
      return (await this.#sign(key, ownerSchema, rest))?.restoreUID === uid;
    }
  }

  /** Whether the folder has only files of this Restore. Logs of data movers have no owner. */
  async #isFree({ name, uid }: RestoreRef, options: SignalOptions): Promise<boolean> {
    if ((await this.ownerOf(name, options)) === uid) return true;
    const logs = moverLogsFolder({ kind: 'Restore', name });
    const journal = restoreJournalFolder(name, uid);
    let hasOthers = false;
    for await (const key of this.#bucket.list(restoreFolder(name), options)) {
      if (key.startsWith(journal)) return true;
      hasOthers ||= !key.startsWith(logs);
    }
    return !hasOthers;
  }

  /** The log, in pieces. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`, and errors of the bucket. */
  readLog(name: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const key = restoreKey(name, 'log');
    return gunzipped(this.#bucket.get(key, options), { key, bytesMax: Infinity });
  }

  volumeInfos(name: string, options: SignalOptions = {}): Promise<RestoreVolumeInfo[]> {
    const key = restoreKey(name, 'volumeInfos');
    return loadList(this.#bucket, key, restoreVolumeInfoSchema, options);
  }

  results(name: string, options?: SignalOptions): Promise<Results> {
    return this.#load(restoreKey(name, 'results'), resultsSchema, options);
  }

  resourceList(name: string, options?: SignalOptions): Promise<ResourceList> {
    return this.#load(restoreKey(name, 'resourceList'), resourceListSchema, options);
  }

  async #load<S extends z.ZodType>(
    key: string,
    schema: S,
    options: SignalOptions = {},
  ): Promise<z.infer<S>> {
    try {
      return await decodeJsonGzip(this.#bucket.get(key, options), key, schema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return schema.parse({});
      throw error;
    }
  }

  /** If true, only {@link seal} gives files their final names. */
  get isWriteOnce(): boolean {
    return keepsApart(this.#bucket);
  }

  /**
   * In a write-once bucket, publishes the files of a finished restore under Velero's names. No file
   * of a restore has its end phase, so `end` is stored with the decision. Returns the `end` of the
   * first call, so that the status matches the files.
   */
  async seal<T extends object>(
    name: string,
    { uid, end, ...options }: DeletionOptions & { readonly uid: string; readonly end: T },
  ): Promise<T> {
    return (await seal(this.#bucket, restoreFolder(name), { ...options, uid, end })) as T;
  }

  /** Throws `FILES_APART` if the location is no longer write-once, and has unpublished files. */
  assertNotApart(name: string, options: SignalOptions = {}): Promise<void> {
    return assertNotApart(this.#bucket, restoreFolder(name), options);
  }

  /** The `end` that {@link seal} stored, or undefined. Throws `DAMAGED_ARCHIVE`. */
  sealedEnd(
    name: string,
    options: SignalOptions & { readonly uid: string },
  ): Promise<object | undefined> {
    return sealedEnd(this.#bucket, restoreFolder(name), options);
  }

  /** Removes every file of the folder. Repeatable. */
  async delete(name: string, options: DeletionOptions = {}): Promise<void> {
    await unseal(this.#bucket, restoreFolder(name), options);
    await deleteFolder(this.#bucket, restoreFolder(name), options);
  }
}
