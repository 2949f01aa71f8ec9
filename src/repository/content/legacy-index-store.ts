import { z } from 'zod';
import { asBuffer, CodedError, isCode } from '../../base/index.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  hasBlob,
  type PutOptions,
} from '../../blob/index.ts';
import type { ActiveIndexSet, IndexStore, SignalOptions } from './index-store.ts';
import { type BlobCodec, damagedBlob, openBlob, sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

/** A format upgrade puts this blob to make old programs fail. */
export const POISON_BLOB =
  'n00000000000000000000000000000000-repository_unreadable_by_this_kopia_version_upgrade_required';

/** Names given by writers and compactions. Other names are copies of sync programs. */
const INDEX_NAME = /^n[0-9a-f]+(-(s[0-9a-z]*)?)?$/;
const LOG_NAME = /^m[0-9a-f]+$/;

/** A log takes 150 bytes for each input of its compaction. */
const LOG_BYTES_MAX = 16 << 20;

const logSchema = z.object({
  inputMetadata: z.array(z.looseObject({ id: z.string() })).nullish(),
  outputMetadata: z.array(z.looseObject({ id: z.string() })).nullish(),
});

export interface CompactionLog {
  readonly blob: BlobMetadata;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
}

export interface LegacyIndexStoreOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  putOptions: PutOptions;
}

/** The `n` index blobs of format 1 and their `m` logs (Kopia: index_blob_manager_v0.go). */
export class LegacyIndexStore implements IndexStore {
  readonly #options: LegacyIndexStoreOptions;
  /** Whether the poison blob existed when this was opened: an upgrade did not finish. */
  #hadPoison: boolean | undefined;

  constructor(options: LegacyIndexStoreOptions) {
    this.#options = options;
  }

  async listActive(options: SignalOptions = {}): Promise<ActiveIndexSet> {
    const { storage, codec } = this.#options;
    const all = await Array.fromAsync(storage.listBlobs('n', options));
    this.#hadPoison ??= all.some(({ id }) => id === POISON_BLOB);
    const present = new Map(
      all.filter(({ id }) => INDEX_NAME.test(id)).map((b) => [String(b.id), b]),
    );
    const active = new Map(present);
    // A compaction counts if all of its outputs are listed. Outputs may be inputs of a later
    // compaction.
    const lost: CodedError[] = [];
    const logs = await loadCompactionLogs(storage, codec, options, (error) => lost.push(error));
    for (const { inputs } of logs.filter((log) => log.outputs.every((id) => present.has(id)))) {
      for (const id of inputs) active.delete(id);
    }
    const superseded = [...present.values()].filter(({ id }) => !active.has(id));
    return { blobs: [...active.values()], watermarkSeconds: 0, superseded, lost };
  }

  /** Throws `REPOSITORY_UPGRADED` if the repository got epochs, so nobody reads `n` blobs. */
  async write(bodies: readonly Uint8Array[], session: SessionId): Promise<BlobId[]> {
    const { storage, codec, putOptions } = this.#options;
    const written: BlobId[] = [];
    for (const body of bodies) {
      const { id, bytes } = sealBlob(codec, 'n', `-${session}`, body);
      await storage.putBlob(id, [bytes], putOptions);
      written.push(id);
    }
    await this.#assertNotUpgraded();
    return written;
  }

  /** Check after the put, because an upgrade reads the index before it puts the poison blob. */
  async #assertNotUpgraded(): Promise<void> {
    const { storage } = this.#options;
    if (this.#hadPoison === true || !(await hasBlob(storage, blobId(POISON_BLOB)))) return;
    const text = `the format of the repository in ${storage.displayName} was upgraded while it was open; what was written since then is lost`;
    throw new CodedError('REPOSITORY_UPGRADED', `${text}: start again`);
  }
}

const throwIt = (error: CodedError): never => {
  throw error;
};

/** Throws `DAMAGED_BLOB`, unless `onDamaged` accepts it. Then the log is skipped. */
export async function loadCompactionLogs(
  storage: BlobStorage,
  codec: BlobCodec,
  { signal }: SignalOptions = {},
  onDamaged: (error: CodedError) => void = throwIt,
): Promise<CompactionLog[]> {
  const logs: CompactionLog[] = [];
  for await (const blob of storage.listBlobs('m', { signal })) {
    if (!LOG_NAME.test(blob.id)) continue;
    const sealed = await storage.getBlob(blob.id, { lengthMax: LOG_BYTES_MAX, signal });
    try {
      logs.push(parseLog(codec, blob, sealed));
    } catch (error) {
      if (!isCode(error, 'DAMAGED_BLOB')) throw error;
      onDamaged(error);
    }
  }
  return logs;
}

function parseLog(codec: BlobCodec, blob: BlobMetadata, sealed: Uint8Array): CompactionLog {
  const plaintext = openBlob(codec, blob.id, sealed);
  try {
    const log = logSchema.parse(JSON.parse(asBuffer(plaintext).toString('utf8')));
    return {
      blob,
      inputs: (log.inputMetadata ?? []).map(({ id }) => id),
      outputs: (log.outputMetadata ?? []).map(({ id }) => id),
    };
  } catch (cause) {
    throw damagedBlob(blob.id, 'it is not a compaction log', cause);
  }
}
