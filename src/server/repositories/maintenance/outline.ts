import { type Nanoseconds, parseDuration, parseGoTime } from '../../../base/index.ts';
import { type LocationRetention, retentionOf } from '../../../config/index.ts';
import type { BackupRepository, Job, KubeObject } from '../../../kube/index.ts';
import { JOB_MARK } from './job.ts';

/**
 * On a BackupRepository: the one Job that may maintain it, as `name` from before that Job is
 * created, and as `name/uid` once it is. It is written with the version of the object that the
 * decision was based on, so that of two servers one decides. The Job itself looks at it too: one
 * that is not named does nothing.
 */
export const CLAIM = 'longshore.io/maintenance-job';

export interface Claim {
  readonly name: string;
  /** Undefined until the Job was seen. */
  readonly uid: string | undefined;
}

export function claimOf({ metadata }: BackupRepository): Claim | undefined {
  const text = metadata.annotations?.[CLAIM];
  if (text === undefined || text === '') return undefined;
  const [name = '', uid] = text.split('/');
  return { name, uid };
}

export const claimText = ({ name, uid }: Claim): string =>
  uid === undefined ? name : `${name}/${uid}`;

/** What is looked at of a Job. */
export interface JobOutline {
  readonly name: string;
  readonly uid: string;
  readonly createdNs: Nanoseconds;
  /** Made by a server of this project, and not by Velero's. */
  readonly isOurs: boolean;
  readonly end: { readonly isSuccess: boolean; readonly atNs: Nanoseconds | undefined } | undefined;
}

export function outlineOf({ metadata, status = {} }: Job): JobOutline {
  const condition = (type: string): string | undefined => {
    const found = status.conditions?.find((each) => each.type === type);
    return found?.status === 'True' ? (found.lastTransitionTime ?? '') : undefined;
  };
  const complete = condition('Complete');
  const failed = condition('Failed');
  const isSuccess = complete !== undefined || (status.succeeded ?? 0) > 0;
  // Not `status.failed`: one pod may have failed while the Job's controller still waits for its
  // end.
  const isOver = isSuccess || failed !== undefined;
  return {
    name: metadata.name,
    uid: metadata.uid,
    createdNs: timeOf(metadata.creationTimestamp) ?? 0n,
    isOurs: metadata.labels?.[JOB_MARK] !== undefined,
    end: isOver
      ? { isSuccess, atNs: timeOf(status.completionTime) ?? timeOf(complete ?? failed) }
      : undefined,
  };
}

/** Undefined for what is no time: others may write it. */
export function timeOf(text: string | null | undefined): Nanoseconds | undefined {
  if (text === undefined || text === null || Number.isNaN(Date.parse(text))) return undefined;
  try {
    return parseGoTime(text);
  } catch {
    return undefined;
  }
}

const HOUR_NS = 3_600_000_000_000n;

/**
 * `spec.maintenanceFrequency`; Kopia's own, an hour, where it says nothing that counts. No more
 * than half of the retention of its location: full maintenance extends the locks of packs, and may
 * fail once.
 */
export function frequencyOf(
  { spec }: BackupRepository,
  location: Pick<KubeObject, 'metadata'> | undefined,
): Nanoseconds {
  const wanted = parseDuration(spec.maintenanceFrequency);
  const frequencyNs = wanted !== undefined && wanted > 0n ? wanted : HOUR_NS;
  const { periodNs } = (location && retentionIn(location)) ?? {};
  const mostNs = periodNs === undefined ? frequencyNs : periodNs / 2n;
  return frequencyNs < mostNs ? frequencyNs : mostNs;
}

/** Undefined where it cannot be read, too: its location is `Unavailable` then, and says why. */
function retentionIn(location: Pick<KubeObject, 'metadata'>): LocationRetention | undefined {
  try {
    return retentionOf(location);
  } catch {
    return undefined;
  }
}
