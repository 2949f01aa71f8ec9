import type { Backup } from '../../backup/index.ts';

/** Of a Backup, for the map of its operations. */
export const subjectOf = ({ metadata: { name, uid } }: Backup) =>
  ({ kind: 'Backup', name, uid }) as const;
