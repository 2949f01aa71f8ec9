import type { BackupRepository } from '../kube/index.ts';

/** Annotation of a BackupRepository: the result of the last verification as JSON. */
export const VERIFICATION_ANNOTATION = 'longshore.io/verification';

/** The result of a repository's verification, short enough for an annotation. */
export interface RepositoryVerdict {
  /** Missing or damaged contents that snapshots may need. */
  readonly damagedContents: number;
  readonly damagedPacks: number;
  /** Snapshots that cannot be fully restored. */
  readonly damagedSnapshots: number;
  /** Share of all packs that was read, from 0 to 1. */
  readonly readShare: number;
  /** Length of all packs in the bucket. Undefined if written by an older version. */
  readonly packBytes?: number | undefined;
  /** Where the next sample starts, from 0 to 1. */
  readonly position?: number | undefined;
  /** The first problem in a sentence. Undefined if there is none. */
  readonly problem?: string | undefined;
}

export interface NotedVerification extends RepositoryVerdict {
  /** End of the verification (RFC 3339). */
  readonly time: string;
  /** Read-only locations: share to read before a problem that was not found again is dropped. */
  readonly keptFor?: number | undefined;
}

/** The result in the annotation. Undefined if missing or invalid. */
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

/** Anyone who can write the object can write the annotation, so check the value. */
const countOf = (value: unknown): number =>
  typeof value === 'number' && Number.isFinite(value) ? value : 0;

const shareOf = (value: unknown): number | undefined =>
  typeof value === 'number' && value >= 0 && value <= 1 ? value : undefined;
