import type { HttpListener } from '../../observability/index.ts';
import {
  openStatusPage as openPage,
  type StatusPageOptions as PageOptions,
} from '../../server/compose/index.ts';
import { ClusterBackupFiles } from '../browse/backup-files.ts';
import { StoredMessages } from './page-messages.ts';
import { StoredSignatures } from './page-signatures.ts';

export interface StatusPageOptions extends Omit<PageOptions, 'sources'> {
  /** Whether users with the right to browse a backup find its files on the page. */
  readonly hasFiles?: boolean;
}

/** Serves the status page until it is disposed. Throws `ADDRESS_UNUSABLE`. */
export function openStatusPage(
  address: string,
  { hasFiles = false, ...options }: StatusPageOptions,
): Promise<HttpListener> {
  const { client, logger, namespace } = options;
  const reads = { client, logger, namespace };
  return openPage(address, {
    ...options,
    sources: {
      messages: new StoredMessages(reads),
      signatures: new StoredSignatures(reads),
      files: hasFiles ? new ClusterBackupFiles(reads) : undefined,
    },
  });
}
