import { createHash } from 'node:crypto';
import { isCode, type Logger, lookup, parseDuration, retryOf } from '../../base/index.ts';
import {
  type Backup,
  type DataDownload,
  type DataUpload,
  isFinalizing,
  type KubeClient,
  type KubeObject,
  patiently as askPatiently,
} from '../../kube/index.ts';
import type { VolumePolicies } from '../../volume-policy/index.ts';
import type { ResourceIdentifier, RestoredBackup } from '../contract.ts';
import type { RecentAnswers } from './recent-answers.ts';
import { DELETE_SECRET, LIST_SECRET } from './velero-names.ts';

/** Why no agent takes up a movement. */
export interface Hindrance {
  /** Part of a sentence: "a node-agent: none is running". */
  readonly waitsFor: string;
  /** False if the agents are only temporarily away. */
  readonly isLasting: boolean;
}

export interface UnclaimedLook {
  /** Undefined if an agent may still take it up. The movement is new, without a finalizer. */
  readonly whyUnserved: (movement: DataUpload | DataDownload) => Promise<Hindrance | undefined>;
  /** Warns the users of a Backup or Restore. Returns at once and never fails. */
  readonly warn: (object: KubeObject, message: string) => void;
}

/** Shared settings of all actions of one process. */
export interface Setting {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Time limit for the deletion of a group; default {@link DELETION_MS}. */
  readonly deletionMs?: number;
  /** Answers that the PVCs of a backup share; without it each PVC asks for itself. */
  readonly recent?: RecentAnswers;
  /**
   * Returns why the volume cannot be restored in place by this DataDownload, which is not created
   * yet. Missing if our server does not run the restore: only our server holds back the users of
   * the volume.
   */
  readonly inPlaceHindrance?: (
    download: DataDownload,
    signal: AbortSignal,
  ) => Promise<Error | undefined>;
  /** Policies that the server has read for the backup. Missing in another process. */
  readonly policiesOf?: (backup: Backup) => Promise<VolumePolicies | undefined>;
  /** Facts about movements that no agent has begun. Missing if our server does not poll them. */
  readonly unclaimed?: UnclaimedLook;
}

/** Shares an answer between the PVCs of a backup, see {@link RecentAnswers}. */
export const askOnce = <T>(
  { recent }: Setting,
  { metadata }: Backup,
  what: string,
  ask: () => Promise<T>,
): Promise<T> => (recent ? recent.of(`${metadata.uid}/${what}`, ask) : ask());

/** Drivers delete in the background, or report a failure within seconds. Our choice. */
export const DELETION_MS = 60_000;

/** A restarting API server is away for seconds; Velero asks a plugin only once. Our choice. */
const TRYING_MS_MAX = 60_000;

/** Retries while the API server is away, busy or refuses for now. `task` must be repeatable. */
export const patiently = <T>(task: () => Promise<T>, signal?: AbortSignal): Promise<T> =>
  askPatiently(task, {
    // Some other writer was first, so a retry cannot succeed.
    passes: (error) => !isCode(error, 'KUBE_CONFLICT', 'KUBE_GONE'),
    firstDelayMs: 100,
    forMs: TRYING_MS_MAX,
    signal,
  });

/** The API server is away; the next call may get an answer. */
export const isAway = (error: unknown): boolean =>
  isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED') && retryOf(error) === 'backoff';

/** A stable name, so that a second attempt finds the object. `prefix` is cut to the limit. */
export function nameFor(prefix: string, ...uids: string[]): string {
  const hash = createHash('sha256').update(uids.join('.')).digest('hex').slice(0, HASH_CHARACTERS);
  return `${prefix.slice(0, NAME_MAX - HASH_CHARACTERS - 1)}-${hash}`;
}
/** Limit of object names: DNS subdomains. */
const NAME_MAX = 253;
const HASH_CHARACTERS = 10;

/** In these phases Velero stores items again and accepts no operation. */
export const isStoredAgain = ({ status }: Backup): boolean => isFinalizing(status?.phase);

/** Velero's default, which its server writes into each Backup. */
const SNAPSHOT_TIMEOUT = '10m0s';
export const snapshotTimeout = ({ spec }: RestoredBackup): string =>
  durationMs(spec.csiSnapshotTimeout ?? '') > 0
    ? (spec.csiSnapshotTimeout ?? '')
    : SNAPSHOT_TIMEOUT;
export const durationMs = (text: string): number =>
  Number((parseDuration(text) ?? 0n) / 1_000_000n);

/** A copy of the object with more labels and annotations. */
export function withMarks<T extends KubeObject>(
  object: T,
  marks: {
    readonly labels?: Readonly<Record<string, string>>;
    readonly annotations?: Readonly<Record<string, string>>;
  },
): T {
  const { metadata } = object;
  return {
    ...object,
    metadata: {
      ...metadata,
      ...(marks.labels && { labels: { ...metadata.labels, ...marks.labels } }),
      ...(marks.annotations && { annotations: { ...metadata.annotations, ...marks.annotations } }),
    },
  };
}

export const SNAPSHOT_GROUP = 'snapshot.storage.k8s.io';
export const identifier = (
  group: string,
  resource: string,
  name: string,
  namespace = '',
): ResourceIdentifier => ({ group, resource, namespace, name });

/** The Secret in a driver's annotation, if both its name and its namespace are set. */
function secretOf({ metadata }: KubeObject, annotation: string): ResourceIdentifier[] {
  const name = lookup(metadata.annotations, `${annotation}-name`);
  const namespace = lookup(metadata.annotations, `${annotation}-namespace`);
  return name && namespace ? [identifier('', 'secrets', name, namespace)] : [];
}
/** The Secret that a class names for listing snapshots. */
export const listSecretOf = (item: KubeObject): ResourceIdentifier[] => secretOf(item, LIST_SECRET);
/** The Secret that a content names for deleting the snapshot. */
export const deleteSecretOf = (item: KubeObject): ResourceIdentifier[] =>
  secretOf(item, DELETE_SECRET);

export const placeOf = ({ metadata: { namespace, name } }: KubeObject): string =>
  namespace === undefined ? name : `${namespace}/${name}`;

export function without<T extends object, K extends keyof T>(object: T, ...keys: K[]): Omit<T, K> {
  const copy = { ...object };
  for (const key of keys) delete copy[key];
  return copy;
}
