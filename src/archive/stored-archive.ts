import { z } from 'zod';
import { isCode } from '../base/index.ts';
import {
  blobId,
  BlobNotFoundError,
  type Bucket,
  type ObjectOptions,
  type SignalOptions,
} from '../blob/index.ts';
import { type KubeObject, SIGNATURE, SIGNED } from '../kube/index.ts';
import { ChecksumRules } from './signing/checksums.ts';
import type { ChecksumsFile } from './signing/checksums-file.ts';
import { Contents } from './item-contents.ts';
import { damaged } from './damaged-error.ts';
import type { PreviousBackup } from './signing/deletion-notes.ts';
import {
  backupSchema,
  type NativeSnapshot,
  objectsSchema,
  type ResourceList,
  resourceListSchema,
  type Results,
  resultsSchema,
  type StoredBackup,
  volumeSnapshotsSchema,
  listSchema,
} from './file-schemas.ts';
import { decodeJson, decodeJsonGzip, wholeOf } from './json-file.ts';
import { type BackupFile, backupKey } from './layout.ts';
import {
  type Annotated,
  assertCheckable,
  assertTrusted,
  assertUnchanged,
  canSign,
  type SignatureState,
  type StoredFiles,
} from './signing/signature.ts';
import { isFinal } from './backup-state.ts';
import type { ContentLimits } from './tarball.ts';
import { type BackupVolumeInfo, backupVolumeInfoSchema } from './volume-infos.ts';

interface SignedLink {
  readonly mac?: string | undefined;
  readonly previous?: PreviousBackup | undefined;
  readonly isEncrypted?: boolean;
}

/** A stored backup, file by file. Files that an old version did not write are empty. */
export class StoredArchive {
  readonly name: string;
  readonly metadata: StoredBackup;
  readonly signature: SignatureState;
  /** Links of signed backups: the signature, and the backup that it names. */
  readonly link: SignedLink;
  readonly #bucket: Bucket;
  readonly #rules: ChecksumRules;
  readonly #reload: (options: SignalOptions) => Promise<ChecksumRules>;

  constructor(backup: {
    readonly bucket: Bucket;
    readonly name: string;
    readonly metadata: StoredBackup;
    readonly signature: SignatureState;
    readonly link: SignedLink;
    readonly rules: ChecksumRules;
    readonly reload: (options: SignalOptions) => Promise<ChecksumRules>;
  }) {
    this.name = backup.name;
    this.metadata = backup.metadata;
    this.signature = backup.signature;
    this.link = backup.link;
    this.#bucket = backup.bucket;
    this.#rules = backup.rules;
    this.#reload = backup.reload;
  }

  /** Call it before each restore. Throws `WRONG_SIGNATURE`, `NOT_SIGNED`. `known`: the Backup. */
  assertTrusted(known?: Annotated): void {
    assertTrusted(this.#files, known);
  }

  /** Throws `WRONG_SIGNATURE`, `NOT_SIGNED` for files that changed after they were signed. */
  assertUnchanged(known?: Annotated): void {
    assertUnchanged(this.#files, known);
  }

  /** Annotations of the Backup in the cluster. Empty for an unsigned backup. */
  get marks(): Readonly<Record<string, string>> {
    const { mac } = this.link;
    if (mac === undefined) return {};
    return { [SIGNED]: 'true', ...(isFinal(this.metadata) && { [SIGNATURE]: mac }) };
  }

  get #files(): StoredFiles {
    const { name, signature, link } = this;
    return { bucket: this.#bucket, name, signature, mac: link.mac };
  }

  /** Throws `NOT_SIGNED`, retryable, while the key of a signed Backup is missing. */
  assertCheckable(known: Annotated): void {
    assertCheckable(this, known);
  }

  /** Whether a writer to the bucket may have stored it in the name of this program. */
  get mayBeForged(): boolean {
    return this.signature !== 'signed' && canSign(this.#bucket);
  }

  /** Whether a checksum of the file was stored with the backup. Logs have none. */
  hasChecksum(file: BackupFile): boolean {
    return this.#rules.isExpected(file);
  }

  /** A file, with its checksum checked at the end. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
  async *read(file: BackupFile, options: SignalOptions = {}): AsyncGenerator<Uint8Array> {
    const key = backupKey(this.name, file);
    // A file that the signature does not cover comes from a foreign writer.
    if (this.signature === 'signed' && !this.#rules.isExpected(file)) {
      throw new BlobNotFoundError(blobId(key));
    }
    try {
      const { uid } = this.metadata.metadata;
      const body = this.#bucket.get(key, { ...options, ownerUid: uid });
      const reload = (): Promise<ChecksumRules> => this.#reload(options);
      yield* this.#rules.checked(file, key, body, reload);
    } catch (error) {
      if (!isCode(error, 'BLOB_NOT_FOUND') || !this.#rules.isExpected(file)) throw error;
      throw damaged(key, 'it was stored, and is gone', error);
    }
  }

  /** The items of the backup, on scratch space until they are closed. */
  openContents(
    options: { readonly directory: string; readonly limits?: ContentLimits } & SignalOptions,
  ): Promise<Contents> {
    return Contents.open(this.read('contents', options), backupKey(this.name, 'contents'), options);
  }

  itemOperations<S extends z.ZodType>(element: S, options?: SignalOptions): Promise<z.infer<S>[]> {
    return this.#load('itemOperations', listSchema(element), [], options);
  }

  volumeInfos(options?: SignalOptions): Promise<BackupVolumeInfo[]> {
    return this.#load('volumeInfos', listSchema(backupVolumeInfoSchema), [], options);
  }

  volumeSnapshots(options?: SignalOptions): Promise<NativeSnapshot[]> {
    return this.#load('volumeSnapshots', volumeSnapshotsSchema, [], options);
  }

  results(options?: SignalOptions): Promise<Results> {
    return this.#load('results', resultsSchema, {}, options);
  }

  resourceList(options?: SignalOptions): Promise<ResourceList> {
    return this.#load('resourceList', resourceListSchema, {}, options);
  }

  /** PodVolumeBackups, or CSI objects that versions before 1.17 stored beside the tarball. */
  objects(
    file:
      | 'podVolumeBackups'
      | 'csiVolumeSnapshots'
      | 'csiVolumeSnapshotContents'
      | 'csiVolumeSnapshotClasses',
    options?: SignalOptions,
  ): Promise<KubeObject[]> {
    return this.#load(file, objectsSchema, [], options);
  }

  async #load<S extends z.ZodType>(
    file: BackupFile,
    schema: S,
    missing: z.infer<S>,
    options: SignalOptions = {},
  ): Promise<z.infer<S>> {
    const key = backupKey(this.name, file);
    try {
      return await decodeJsonGzip(this.read(file, options), key, schema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return missing;
      throw error;
    }
  }
}

export interface OpenOptions extends SignalOptions {
  readonly bucket: Bucket;
  readonly checksums: ChecksumsFile;
  /** Limit for the stored Backup. A longer one counts as damaged. */
  readonly metadataBytesMax: number | undefined;
}

/** Reads a Backup and its checksums. Throws `BLOB_NOT_FOUND`, `DAMAGED_ARCHIVE`. */
export async function openArchive(name: string, options: OpenOptions): Promise<StoredArchive> {
  const { bucket } = options;
  let found = await load(name, options);
  // The backup may have been finished between the reads of its two files.
  if (found.signature === 'wrong') found = await load(name, options);
  const { metadata, rules, signature, link } = found;
  const reload = async ({ signal }: SignalOptions): Promise<ChecksumRules> => {
    const now = await load(name, { ...options, signal });
    // The reader has checked one signature. Files with another signature stay out.
    return now.signature === signature ? now.rules : rules;
  };
  return new StoredArchive({ bucket, name, metadata, signature, link, rules, reload });
}

async function load(
  name: string,
  { bucket, checksums, metadataBytesMax, ...options }: OpenOptions,
): Promise<{
  readonly metadata: StoredBackup;
  readonly rules: ChecksumRules;
  readonly signature: SignatureState;
  readonly link: SignedLink;
}> {
  const key = backupKey(name, 'metadata');
  const bytes = await wholeOf(bucket.get(key, options), key, metadataBytesMax);
  const metadata = await decodeJson([bytes], key, backupSchema);
  if (metadata.metadata.name !== name) {
    throw damaged(key, `it is of backup "${metadata.metadata.name.slice(0, 253)}"`);
  }
  const held = await checksums.load(name, options);
  const rules = new ChecksumRules(held, metadata);
  await wholeOf(rules.checked('metadata', key, [bytes]), key);
  const signature = checksums.stateOf(name, metadata, held);
  const link =
    signature === 'signed'
      ? {
          mac: held?.signature?.mac,
          previous: held?.previous,
          isEncrypted: held?.encrypted === true,
        }
      : {};
  return { metadata, rules, signature, link };
}

/** A list in a file; empty without the file. */
export async function loadList<S extends z.ZodType>(
  bucket: Bucket,
  key: string,
  element: S,
  options: ObjectOptions,
): Promise<z.infer<S>[]> {
  try {
    return await decodeJsonGzip(bucket.get(key, options), key, listSchema(element));
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return [];
    throw error;
  }
}
