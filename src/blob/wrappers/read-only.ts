import { CodedError } from '../../base/index.ts';
import type { BlobStorage } from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/** Refuses every change with `STORAGE_READ_ONLY`. */
export function readOnly(inner: BlobStorage): BlobStorage {
  return new ReadOnlyStorage(inner);
}

class ReadOnlyStorage extends ForwardingStorage {
  override putBlob(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  override deleteBlob(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  override extendRetention(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  override removeUnfinishedPuts(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  #refusal(): CodedError {
    return new CodedError('STORAGE_READ_ONLY', `${this.displayName} was opened read-only`);
  }
}
