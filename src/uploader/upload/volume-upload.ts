import { CodedError, messageOf, systemCode } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import type { Policy } from '../../snapshot/index.ts';
import type { KeptExtras } from '../../volume-files/index.ts';
import type { FileUpload } from '../file-data/file-upload.ts';
import type { OpenTree } from './open-tree.ts';
import type { PreviousDirectory } from '../listing/previous-entries.ts';
import type { UploadCounters } from '../progress.ts';
import type { TreeUpload } from './tree-upload.ts';

/** The parts of an upload of a whole volume. */
export interface VolumeUpload {
  repository: Repository;
  tree: TreeUpload;
  files: FileUpload;
  path: string;
  roots: readonly PreviousDirectory[];
  counters: UploadCounters;
  policy: Policy;
  signal: AbortSignal;
  open: OpenTree;
  extras: KeptExtras | undefined;
}

/** The bytes of a pipe, stored instead of a path. */
export interface StreamSource {
  /** The file's name in the snapshot. */
  readonly name: string;
  /** Throws if the bytes are not complete, and after an abort. */
  readonly read: (signal: AbortSignal) => AsyncIterable<Uint8Array>;
}

/** `SOURCE_UNREADABLE`: the volume as a whole is unreadable. */
export function unreadable(path: string, cause: unknown): CodedError {
  const reason = systemCode(cause) === 'ENOENT' ? 'it does not exist' : messageOf(cause);
  return new CodedError('SOURCE_UNREADABLE', `cannot read ${path}: ${reason}`, { cause });
}
