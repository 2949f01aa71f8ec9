import type { Backup } from '../../backup/index.ts';

export { failureLines } from '../operations/failures.ts';

/** Of a Backup, for the map of its operations. */
export const subjectOf = ({ metadata: { name, uid } }: Backup) =>
  ({ kind: 'Backup', name, uid }) as const;
