import {
  type Clock,
  isCode,
  messageOf,
  type Nanoseconds,
  type RandomBytes,
  SECOND_NS,
} from '../base/index.ts';
import type { Location } from './location.ts';
import { type BlobId, blobId, type BlobStorage } from './storage.ts';

/** A line of a check. */
export interface CheckResult {
  readonly name: string;
  readonly ok: boolean;
  /** The result, or the error. */
  readonly detail: string;
  /** Advice for the user. */
  readonly fix?: string;
  readonly seconds: number;
  /** Every later step would fail too. */
  readonly isHopeless?: boolean;
}

export interface CheckOptions {
  readonly kind: Location['kind'];
  readonly clock: Clock;
  readonly random: RandomBytes;
  readonly signal?: AbortSignal;
}

type Operation = 'list' | 'get' | 'put' | 'delete';

/** Permissions that a user needs, in the words of each provider. */
const PERMISSIONS: Record<Location['kind'], Record<Operation, string>> = {
  file: {
    list: 'read and search permission on the directory',
    get: 'read permission on the files',
    put: 'write permission on the directory, and free space',
    delete: 'write permission on the directory',
  },
  s3: {
    list: 's3:ListBucket on the bucket',
    get: 's3:GetObject on the bucket/prefix/*',
    put: 's3:PutObject on the bucket/prefix/* (and kms:GenerateDataKey with SSE-KMS)',
    delete: 's3:DeleteObject on the bucket/prefix/*',
  },
  azblob: {
    list: 'the role Storage Blob Data Contributor, or a SAS token with l',
    get: 'the role Storage Blob Data Contributor, or a SAS token with r',
    put: 'the role Storage Blob Data Contributor, or a SAS token with c and w',
    delete: 'the role Storage Blob Data Contributor, or a SAS token with d',
  },
  gs: {
    list: 'storage.objects.list (role Storage Object User)',
    get: 'storage.objects.get (role Storage Object User)',
    put: 'storage.objects.create and .delete, to overwrite (role Storage Object User)',
    delete: 'storage.objects.delete (role Storage Object User)',
  },
};

/** With more, signatures fail, and maintenance relies on hours and is unsafe (Kopia: 5 minutes). */
const CLOCK_DIFFERENCE_MAX: Nanoseconds = 300n * SECOND_NS;
const DATA_BYTES = 4096;
/** Failures that come before any permission is checked. */
const HOPELESS = ['STORAGE_NOT_FOUND', 'STORAGE_CREDENTIALS', 'STORAGE_UNREACHABLE', 'STORAGE_TLS'];
const ONE_CREATOR = 'create repositories there from one place at a time';
/** The check stops counting at this many blobs. */
const COUNTED_MAX = 10_000;

/**
 * Tries everything that a repository needs of its storage, step by step. Continues after a failure
 * if later steps make sense. Always deletes its own blob.
 */
export async function* checkStorage(
  storage: BlobStorage,
  options: CheckOptions,
): AsyncGenerator<CheckResult> {
  const check = new StorageCheck(storage, options);
  const list = await check.step('list', 'list', () => check.list());
  yield list;
  if (list.isHopeless === true) return;
  const put = await check.step('put', 'put', () => check.put());
  yield put;
  if (!put.ok) {
    // The blob may exist if only the answer was lost.
    await check.delete().catch(() => undefined);
    return;
  }
  try {
    yield await check.step('get', 'get', () => check.get());
    yield await check.step('range', 'get', () => check.range());
    yield await check.step('metadata', 'get', () => check.metadata());
    yield await check.step('clock', 'get', () => check.clock());
    yield await check.step('list new blobs', 'list', () => check.listed());
    yield await check.step('overwrite', 'put', () => check.overwrite());
    yield await check.step('put if absent', 'put', () => check.putIfAbsent());
  } finally {
    yield await check.step('delete', 'delete', () => check.delete());
  }
  const adapted = await check.step('adaptations', 'get', () => check.adaptations());
  if (adapted.detail !== '') yield adapted;
}

/** A problem that the storage did not report as an error. */
class Finding extends Error {
  readonly fix: string;

  constructor(message: string, fix: string) {
    super(message);
    this.fix = fix;
  }
}

const NOT_CONSISTENT =
  'a repository needs storage that shows every write at once: look for caches and gateways in between';

class StorageCheck {
  readonly #storage: BlobStorage;
  readonly #options: CheckOptions;
  readonly #id: BlobId;
  #data: Uint8Array;

  constructor(storage: BlobStorage, options: CheckOptions) {
    this.#storage = storage;
    this.#options = options;
    this.#id = blobId(`longshore-check-${Buffer.from(options.random(8)).toString('hex')}`);
    this.#data = options.random(DATA_BYTES);
  }

  async step(
    name: string,
    operation: Operation,
    task: () => Promise<string>,
  ): Promise<CheckResult> {
    const start = performance.now();
    const seconds = (): number => (performance.now() - start) / 1000;
    try {
      return { name, ok: true, detail: await task(), seconds: seconds() };
    } catch (error) {
      const needed = `needed: ${PERMISSIONS[this.#options.kind][operation]}`;
      const fix =
        error instanceof Finding ? error.fix : isCode(error, 'STORAGE_DENIED') ? needed : '';
      return {
        name,
        ok: false,
        detail: messageOf(error),
        ...(fix !== '' && { fix }),
        isHopeless: isCode(error, ...HOPELESS),
        seconds: seconds(),
      };
    }
  }

  async list(): Promise<string> {
    let count = 0;
    for await (const blob of this.#storage.listBlobs('', this.#options)) {
      if (blob.id !== '' && ++count === COUNTED_MAX) break;
    }
    if (count === COUNTED_MAX) return `${count} blobs or more`;
    return count === 1 ? '1 blob' : `${count} blobs`;
  }

  async put(): Promise<string> {
    await this.#storage.putBlob(this.#id, [this.#data], this.#options);
    return `${this.#data.length} bytes`;
  }

  /** Features that the service does not support; empty if it supports all of them. */
  adaptations(): Promise<string> {
    return Promise.resolve((this.#storage.adaptations ?? []).join('; '));
  }

  async get(): Promise<string> {
    const found = await this.#storage.getBlob(this.#id, this.#options);
    if (Buffer.compare(found, this.#data) !== 0) {
      throw new Finding(
        'the bytes that are read back differ from those that were written',
        NOT_CONSISTENT,
      );
    }
    return 'a new blob is read back at once';
  }

  async range(): Promise<string> {
    const wanted = { offset: 1000, lengthBytes: 100, ...this.#options };
    const found = await this.#storage.getBlob(this.#id, wanted);
    if (Buffer.compare(found, this.#data.subarray(1000, 1100)) !== 0) {
      throw new Finding(
        'a request for a range is answered with the wrong bytes',
        'the service, or a proxy in front of it, ignores the Range header',
      );
    }
    return '100 bytes from the middle';
  }

  async metadata(): Promise<string> {
    const { lengthBytes } = await this.#storage.getMetadata(this.#id, this.#options);
    if (lengthBytes !== this.#data.length) {
      throw new Finding(
        `a length of ${lengthBytes} bytes, not ${this.#data.length}`,
        NOT_CONSISTENT,
      );
    }
    return `${lengthBytes} bytes`;
  }

  async clock(): Promise<string> {
    const { timestampNs } = await this.#storage.getMetadata(this.#id, this.#options);
    const differenceNs = timestampNs - this.#options.clock.nowNs();
    const seconds = Math.round(Number(differenceNs) / 1e9) || 0;
    const isFar = differenceNs > CLOCK_DIFFERENCE_MAX || differenceNs < -CLOCK_DIFFERENCE_MAX;
    if (isFar) {
      throw new Finding(
        `the storage's clock differs from this machine's by ${seconds} s`,
        'set the time of both (NTP): signatures and maintenance depend on it',
      );
    }
    return `the storage's clock differs by ${seconds} s`;
  }

  async listed(): Promise<string> {
    const found = await Array.fromAsync(this.#storage.listBlobs(this.#id, this.#options));
    if (found.length !== 1) throw new Finding('a new blob is not listed', NOT_CONSISTENT);
    return 'a new blob is listed at once';
  }

  async overwrite(): Promise<string> {
    this.#data = this.#options.random(DATA_BYTES / 2);
    await this.put();
    await this.get();
    return 'an overwritten blob is read back at once';
  }

  /** Puts as the creation of a repository does. Conditional puts are not required. */
  async putIfAbsent(): Promise<string> {
    // If deletions are denied, the next step reports it.
    const isGone = await this.#storage.deleteBlob(this.#id, this.#options).then(
      () => true,
      () => false,
    );
    try {
      if (isGone) await this.#putNew();
      await this.#putNew();
      return `the service ignores the condition (If-None-Match): ${ONE_CREATOR}`;
    } catch (error) {
      if (isCode(error, 'BLOB_EXISTS')) return 'a blob that exists is not put again';
      if (!isCode(error, 'UNSUPPORTED_PUT')) throw error;
    }
    await this.put();
    return `the storage does not support it: ${ONE_CREATOR}`;
  }

  #putNew(): Promise<void> {
    return this.#storage.putBlob(this.#id, [this.#data], { ...this.#options, doNotRecreate: true });
  }

  async delete(): Promise<string> {
    await this.#storage.deleteBlob(this.#id);
    const found = await Array.fromAsync(this.#storage.listBlobs(this.#id));
    if (found.length > 0) {
      throw new Finding(
        'a deleted blob is still listed',
        `delete ${this.#id} manually; ${NOT_CONSISTENT}`,
      );
    }
    return 'nothing is left behind';
  }
}
