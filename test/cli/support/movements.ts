import type { MovementDescription } from '../../../src/agent/index.ts';

/** A movement that nobody has accepted yet, as status and wait describe it. */
export const newMovement = (
  name: string,
  more: Partial<MovementDescription> = {},
): MovementDescription => ({
  kind: 'DataUpload',
  name,
  uid: `u-${name}`,
  volume: `app/${name}`,
  storageLocation: 'default',
  dataMover: 'velero',
  phase: 'New',
  node: '',
  ageSeconds: 5,
  movingSeconds: undefined,
  bytesDone: 0,
  totalBytes: 0,
  isOver: false,
  waitsFor: 'a node-agent to accept it',
  ...more,
});
