import { type Nanoseconds, parseDuration, parseGoTime } from '../../../base/index.ts';
import { type LocationRetention, retentionOf } from '../../../config/index.ts';
import type { BackupRepository, Job, KubeObject } from '../../../kube/index.ts';
import { JOB_MARK } from './job.ts';

/**
 * Annotation on a BackupRepository that names the only Job that may maintain it. The value is
 * `name` before the Job is created, and `name/uid` afterwards. Each write checks the resource
 * version, so only one of two servers wins. The Job checks the claim too, and does nothing if
 * another Job is named.
 */
export const CLAIM = 'longshore.io/maintenance-job';

export interface Claim {
  readonly name: string;
  /** Undefined until the Job exists. */
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

/** The fields of a Job that the planner needs. */
export interface JobOutline {
  readonly name: string;
  readonly uid: string;
  readonly createdNs: Nanoseconds;
  /** Created by this project, not by Velero's server. */
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
  // Not `status.failed`: a pod may have failed while the Job controller has not ended the Job.
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

/** Undefined for an invalid time: other programs write it, too. */
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
 * `spec.maintenanceFrequency`, or Kopia's default of an hour. At most half of the location's
 * retention: full maintenance extends the locks of packs, and may fail once.
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

/** Undefined for an invalid retention, too: then its location is `Unavailable` with the reason. */
function retentionIn(location: Pick<KubeObject, 'metadata'>): LocationRetention | undefined {
  try {
    return retentionOf(location);
  } catch {
    return undefined;
  }
}
