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

/** Why nobody takes a movement up. */
export interface Hindrance {
  /** As part of a sentence: "a node-agent: none is running". */
  readonly waitsFor: string;
  /** False where those who would take it up are only away. */
  readonly isLasting: boolean;
}

export interface UnclaimedLook {
  /**
   * Undefined while somebody may take it up. The movement is new, and no agent has put a finalizer
   * on it.
   */
  readonly whyUnserved: (movement: DataUpload | DataDownload) => Promise<Hindrance | undefined>;
  /** Tells the users of a Backup or Restore, at once and never failing. */
  readonly warn: (object: KubeObject, message: string) => void;
}

/** What all actions of one process share. */
export interface Setting {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** How long the deletion of a group is waited for; {@link DELETION_MS} where it is left out. */
  readonly deletionMs?: number;
  /** Of questions that all PVCs of a backup ask; without it each asks for itself. */
  readonly recent?: RecentAnswers;
  /**
   * What keeps a volume that is there from being brought back in place by this DataDownload, which
   * is not made yet. Left out where no server of ours restores: it alone holds back what uses the
   * volume meanwhile.
   */
  readonly inPlaceHindrance?: (
    download: DataDownload,
    signal: AbortSignal,
  ) => Promise<Error | undefined>;
  /**
   * What the server that runs the action has read for this backup. Left out where the server is
   * another process.
   */
  readonly policiesOf?: (backup: Backup) => Promise<VolumePolicies | undefined>;
  /**
   * About movements that no agent has begun. Left out where no server of ours asks for their
   * progress.
   */
  readonly unclaimed?: UnclaimedLook;
}

/** What all PVCs of a backup ask, {@link RecentAnswers}. */
export const askOnce = <T>(
  { recent }: Setting,
  { metadata }: Backup,
  what: string,
  ask: () => Promise<T>,
): Promise<T> => (recent ? recent.of(`${metadata.uid}/${what}`, ask) : ask());

/** Drivers delete in the background, or say within seconds that they cannot. Our choice. */
export const DELETION_MS = 60_000;

/**
 * An API server that restarts is away for some seconds; Velero asks a plugin once, and counts an
 * error. Our choice.
 */
const TRYING_MS_MAX = 60_000;

/**
 * Retries a request while the API server is away, busy or refuses it for now. For what may be done
 * twice.
 */
export const patiently = <T>(task: () => Promise<T>, signal?: AbortSignal): Promise<T> =>
  askPatiently(task, {
    // Somebody else was first: asking again changes nothing.
    passes: (error) => !isCode(error, 'KUBE_CONFLICT', 'KUBE_GONE'),
    firstDelayMs: 100,
    forMs: TRYING_MS_MAX,
    signal,
  });

/** The API server is away: what it would say may be known at the next call. */
export const isAway = (error: unknown): boolean =>
  isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED') && retryOf(error) === 'backoff';

/**
 * A name that follows from what it is made for, so that a second attempt finds what the first one
 * made. `prefix` is cut where the whole would be longer than Kubernetes allows.
 */
export function nameFor(prefix: string, ...uids: string[]): string {
  const hash = createHash('sha256').update(uids.join('.')).digest('hex').slice(0, HASH_CHARACTERS);
  return `${prefix.slice(0, NAME_MAX - HASH_CHARACTERS - 1)}-${hash}`;
}
/** Of names of objects: DNS subdomains. */
const NAME_MAX = 253;
const HASH_CHARACTERS = 10;

/** Velero stores items once more then, and takes no operation. */
export const isStoredAgain = ({ status }: Backup): boolean => isFinalizing(status?.phase);

/** Velero's default, which its server writes into each Backup. */
const SNAPSHOT_TIMEOUT = '10m0s';
export const snapshotTimeout = ({ spec }: RestoredBackup): string =>
  durationMs(spec.csiSnapshotTimeout ?? '') > 0
    ? (spec.csiSnapshotTimeout ?? '')
    : SNAPSHOT_TIMEOUT;
export const durationMs = (text: string): number =>
  Number((parseDuration(text) ?? 0n) / 1_000_000n);

/** The object with more labels and annotations; itself stays as it is. */
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

/** The Secret that a driver's annotation names, if both its name and its namespace are there. */
function secretOf({ metadata }: KubeObject, annotation: string): ResourceIdentifier[] {
  const name = lookup(metadata.annotations, `${annotation}-name`);
  const namespace = lookup(metadata.annotations, `${annotation}-namespace`);
  return name && namespace ? [identifier('', 'secrets', name, namespace)] : [];
}
/** Of a class: what the driver lists snapshots with. */
export const listSecretOf = (item: KubeObject): ResourceIdentifier[] => secretOf(item, LIST_SECRET);
/** Of a content: what the driver deletes the snapshot with. */
export const deleteSecretOf = (item: KubeObject): ResourceIdentifier[] =>
  secretOf(item, DELETE_SECRET);

export const placeOf = ({ metadata: { namespace, name } }: KubeObject): string =>
  namespace === undefined ? name : `${namespace}/${name}`;

/** A copy that lacks some fields. */
export function without<T extends object, K extends keyof T>(object: T, ...keys: K[]): Omit<T, K> {
  const copy = { ...object };
  for (const key of keys) delete copy[key];
  return copy;
}
