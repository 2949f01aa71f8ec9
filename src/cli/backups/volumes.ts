import {
  describeMovements,
  type MovementDescription,
  type StatusWorld,
} from '../../agent/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  hasMovementFailed,
  isMovementOver,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
  validLabel,
} from '../../kube/index.ts';
import type { Noun } from './noun.ts';

/** Volumes whose data a backup or restore moves, as the cluster's objects tell. */

export type Movement = StatusWorld['movements'][number];

/** Kinds of objects that ask for a volume of theirs to be moved. */
export const MOVEMENTS: Readonly<Record<Noun['word'], readonly Resource<Movement>[]>> = {
  backup: [DATA_UPLOADS, POD_VOLUME_BACKUPS],
  restore: [DATA_DOWNLOADS, POD_VOLUME_RESTORES],
  schedule: [],
};

/**
 * Whether an object was made for this very backup or restore, and not for an earlier one of the
 * same name.
 */
export function isOf({ word }: Noun, { metadata }: KubeObject): (movement: KubeObject) => boolean {
  const name = validLabel(metadata.name);
  return ({ metadata: { labels = {} } }) => {
    const uid = labels[`velero.io/${word}-uid`];
    return labels[`velero.io/${word}-name`] === name && (!uid || uid === metadata.uid);
  };
}

/** Its DataUploads, DataDownloads, PodVolumeBackups and PodVolumeRestores. */
export function volumesOf(
  world: StatusWorld,
  noun: Noun,
  object: KubeObject,
): MovementDescription[] {
  const isOurs: (movement: Movement) => boolean = isOf(noun, object);
  return describeMovements(world, isOurs);
}

export interface VolumeTotals {
  readonly count: number;
  readonly ended: number;
  readonly failed: number;
  readonly bytesDone: number;
  readonly totalBytes: number;
  /** Of each one it is known how much there is. */
  readonly isTotalKnown: boolean;
}

export function totalsOf(volumes: readonly MovementDescription[]): VolumeTotals {
  const sum = (of: (volume: MovementDescription) => number): number =>
    volumes.reduce((total, volume) => total + of(volume), 0);
  return {
    count: volumes.length,
    ended: sum((volume) => Number(hasEnded(volume))),
    failed: sum(({ phase }) => Number(hasMovementFailed(phase))),
    bytesDone: sum(({ bytesDone }) => bytesDone),
    totalBytes: sum(({ bytesDone, totalBytes }) => Math.max(bytesDone, totalBytes)),
    isTotalKnown: volumes.every(({ totalBytes, phase }) => totalBytes > 0 || phase === 'Completed'),
  };
}

export const hasEnded = ({ phase }: MovementDescription): boolean => isMovementOver(phase);
