import { createHash } from 'node:crypto';
import type { Restore } from '../contract.ts';

/** Of a snapshot and of its content, another one in each restore (Velero: pkg/util, GenerateSha256FromRestoreUIDAndVsName). */
export const restoredSnapshotName = ({ metadata }: Restore, name: string): string =>
  createHash('sha256').update(`${metadata.uid}/${name}`).digest('hex');
