import type { BackupRepository } from '../kube/index.ts';

/** On a BackupRepository: what the last verification found, as JSON. */
export const VERIFICATION_ANNOTATION = 'longshore.io/verification';

/** What a verification of one repository found, in a form that has room in an annotation. */
export interface RepositoryVerdict {
  /** Contents that snapshots may need and that are missing or damaged. */
  readonly damagedContents: number;
  readonly damagedPacks: number;
  /** Snapshots that cannot be restored completely. */
  readonly damagedSnapshots: number;
  /** Of all packs, how much was read, from 0 to 1. */
  readonly readShare: number;
  /** Of all packs that were in the bucket; undefined where an older version has noted it. */
  readonly packBytes?: number | undefined;
  /** Where the next sample begins, from 0 to 1. */
  readonly position?: number | undefined;
  /** The first problem in a sentence; undefined where all is well. */
  readonly problem?: string | undefined;
}

export interface NotedVerification extends RepositoryVerdict {
  /** When it ended (RFC 3339). */
  readonly time: string;
  /**
   * Of a read-only location: how much is still to be read before a problem that nobody finds any
   * more is forgotten.
   */
  readonly keptFor?: number | undefined;
}

/** What the annotation says; undefined where there is none, or none of ours. */
export function verificationOf({ metadata }: BackupRepository): NotedVerification | undefined {
  try {
    const noted = JSON.parse(
      metadata.annotations?.[VERIFICATION_ANNOTATION] ?? '',
    ) as Partial<NotedVerification> | null;
    if (typeof noted?.time !== 'string' || Number.isNaN(Date.parse(noted.time))) return undefined;
    const position = shareOf(noted.position);
    const keptFor = shareOf(noted.keptFor);
    const damagedContents = countOf(noted.damagedContents);
    return { ...noted, damagedContents, position, keptFor } as NotedVerification;
  } catch {
    return undefined;
  }
}

/** Anybody who may write the object may write this. */
const countOf = (value: unknown): number =>
  typeof value === 'number' && Number.isFinite(value) ? value : 0;

const shareOf = (value: unknown): number | undefined =>
  typeof value === 'number' && value >= 0 && value <= 1 ? value : undefined;
