import { isCode, messageOf } from '../../../base/index.ts';
import {
  type DataDownload,
  type DataUpload,
  isInPlace,
  isNew,
  type KubeObject,
  type Resource,
} from '../../../kube/index.ts';
import { type Hindrance, isAway, type Setting, type UnclaimedLook } from '../settings.ts';

type Movement = DataUpload | DataDownload;

/** Agents take up to some seconds. Our choice. */
const FIRST_LOOK_MS = 10_000;
/** Our choice: two requests each time, for all movements of a data mover. */
const LOOK_MS = 60_000;
/**
 * Failed looks in a row before an operation fails: a DaemonSet may be deleted and created again
 * meanwhile. Our choice; the time alone may have been spent asleep.
 */
const LOOKS_MIN = 5;

const WAITS = 'waits for ';
/** Whether an operation's description says why no agent has begun it. */
export const isWaitNote = (description: string): boolean => description.startsWith(WAITS);

interface Waiting {
  readonly sinceMs: number;
  lookedAtMs: number;
  /** Looks in a row with a lasting hindrance. */
  looks: number;
  waitsFor: string | undefined;
}

/** Whether no agent has begun the movement. Every agent adds a finalizer, even without a slot. */
export const isUnclaimed = ({ status, metadata }: Movement): boolean =>
  isNew(status?.phase) && (metadata.finalizers ?? []).length === 0;

/**
 * Movements that no agent takes up, because no agent runs or none serves their data mover. Warns
 * their users. If this lasts for some minutes, the operation fails and its movement is canceled, so
 * that it does not begin after the operation has ended. Velero waits for the time-out instead.
 */
export class Unclaimed<T extends Movement> {
  readonly #setting: Setting;
  readonly #source: UnclaimedLook;
  readonly #resource: Resource<T>;
  /** Unclaimed movements by operation ID. */
  readonly #waiting = new Map<string, Waiting>();
  /** Answers by data mover, because a data mover may have thousands of movements. */
  readonly #answers = new Map<
    string,
    { readonly atMs: number; answer: Promise<Hindrance | undefined> }
  >();

  constructor(setting: Setting, source: UnclaimedLook, resource: Resource<T>) {
    this.#setting = setting;
    this.#source = source;
    this.#resource = resource;
  }

  /** Call it when an agent has begun the movement. */
  forget(operationId: string): void {
    this.#waiting.delete(operationId);
  }

  /** Call it for a movement that is still unclaimed. `failed`: why the operation has ended. */
  async look(
    operationId: string,
    movement: T,
    signal: AbortSignal,
  ): Promise<{ readonly waitsFor?: string | undefined; readonly failed?: string }> {
    const nowMs = performance.now();
    const waiting = this.#waiting.get(operationId) ?? {
      sinceMs: nowMs,
      lookedAtMs: -Infinity,
      looks: 0,
      waitsFor: undefined,
    };
    this.#waiting.set(operationId, waiting);
    if (nowMs - waiting.sinceMs < FIRST_LOOK_MS || nowMs - waiting.lookedAtMs < LOOK_MS) {
      return { waitsFor: waiting.waitsFor };
    }
    waiting.lookedAtMs = nowMs;
    try {
      const hindrance = await this.#ask(movement, nowMs);
      this.#note(waiting, movement, hindrance);
      if (waiting.looks < LOOKS_MIN) return { waitsFor: waiting.waitsFor };
      if (!(await this.#end(movement, signal))) return { waitsFor: waiting.waitsFor };
    } catch (error) {
      if (signal.aborted) throw error;
      this.#setting.logger.debug(
        { operationId, reason: messageOf(error) },
        'it is not known who would take up a movement',
      );
      return { waitsFor: waiting.waitsFor };
    }
    this.#waiting.delete(operationId);
    return {
      failed: `no node-agent took it up, and nothing was moved: it ${waiting.waitsFor ?? ''}`,
    };
  }

  #ask(movement: T, nowMs: number): Promise<Hindrance | undefined> {
    const isIntoThere = 'targetVolume' in movement.spec && isInPlace(movement as DataDownload);
    const key = `${movement.spec.datamover ?? ''}${isIntoThere ? ' in place' : ''}`;
    const before = this.#answers.get(key);
    if (before && nowMs - before.atMs < LOOK_MS / 2) return before.answer;
    const answer = this.#source.whyUnserved(movement);
    answer.catch(() => this.#answers.delete(key));
    this.#answers.set(key, { atMs: nowMs, answer });
    return answer;
  }

  #note(waiting: Waiting, movement: T, hindrance: Hindrance | undefined): void {
    const before = waiting.waitsFor;
    waiting.waitsFor = hindrance && `${WAITS}${hindrance.waitsFor}`;
    waiting.looks = hindrance?.isLasting === true ? waiting.looks + 1 : 0;
    if (waiting.waitsFor === undefined || waiting.waitsFor === before) return;
    const { name } = movement.metadata;
    const { kind } = this.#resource;
    this.#setting.logger.warn(
      { [kind]: name, waitsFor: hindrance?.waitsFor },
      'nobody takes up a movement of data',
    );
    const owner = ownerOf(movement);
    if (owner) this.#source.warn(owner, `${kind} ${name} ${waiting.waitsFor}`);
  }

  /** Cancels the movement, unless an agent has taken it up or changed it since it was read. */
  async #end({ metadata }: T, signal: AbortSignal): Promise<boolean> {
    const { name, namespace, uid, resourceVersion } = metadata;
    const patch = { metadata: { uid, resourceVersion }, spec: { cancel: true } };
    try {
      await this.#setting.client.patch(this.#resource, { name, namespace }, patch, { signal });
      return true;
    } catch (error) {
      if (isAway(error) || isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND')) return false;
      throw error;
    }
  }
}

function ownerOf({ metadata }: Movement): KubeObject | undefined {
  const owner = metadata.ownerReferences?.find(({ controller }) => controller === true);
  if (!owner) return undefined;
  const { apiVersion, kind, name, uid } = owner;
  const { namespace } = metadata;
  return {
    apiVersion,
    kind,
    metadata: { name, uid, ...(namespace !== undefined && { namespace }) },
  } as KubeObject;
}
