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

/** A move of a volume's data for a backup or restore, as the cluster's CR describes it. */

export type Movement = StatusWorld['movements'][number];

/** The kinds of CRs that move volumes. */
export const MOVEMENTS: Readonly<Record<Noun['word'], readonly Resource<Movement>[]>> = {
  backup: [DATA_UPLOADS, POD_VOLUME_BACKUPS],
  restore: [DATA_DOWNLOADS, POD_VOLUME_RESTORES],
  schedule: [],
};

/**
 * Whether an object belongs to this very backup or restore, not to an earlier one of the same name.
 */
export function isOf({ word }: Noun, { metadata }: KubeObject): (movement: KubeObject) => boolean {
  const name = validLabel(metadata.name);
  return ({ metadata: { labels = {} } }) => {
    const uid = labels[`velero.io/${word}-uid`];
    return labels[`velero.io/${word}-name`] === name && (!uid || uid === metadata.uid);
  };
}

/** DataUploads, DataDownloads, PodVolumeBackups and PodVolumeRestores of a run. */
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
  /** Whether the total is known for every volume. */
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
