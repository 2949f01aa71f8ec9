import { CodedError, isCode, messageOf } from '../../../base/index.ts';
import {
  type DataDownload,
  type DataUpload,
  isMovementOver,
  isNew,
  type NewObject,
  type Resource,
  waitFor,
} from '../../../kube/index.ts';
import type { CallContext, OperationProgress } from '../../contract.ts';
import { invalidOperationId } from '../../operation-errors.ts';
import { DELETION_MS, isAway, patiently, type Setting } from '../settings.ts';
import { type Owner, SharedLook } from './shared-reads.ts';
import { isUnclaimed, Unclaimed } from './unclaimed-movements.ts';
import { OPERATION_ID } from '../velero-names.ts';

type Movement = DataUpload | DataDownload;

const UNKNOWN: OperationProgress = {
  completed: false,
  err: '',
  nCompleted: 0,
  nTotal: 0,
  operationUnits: '',
  description: '',
  started: undefined,
  updated: undefined,
};

/** Velero's cancel returns at once, although the work may continue. Our choice. */
const CANCEL_MS = 60_000;

/** Velero: label.GetValidName of `du-<backup>.<pvc>` or `dd-<restore>.<pvc>`. */
const ID = /^d[du]-.+/;

/**
 * Operations that move data. Each is a DataUpload or a DataDownload, found by the label with the
 * operation ID. Keeps no state, because another process polls the operation than began it.
 */
export class Movements<T extends Movement> {
  readonly #setting: Setting;
  readonly #resource: Resource<T>;
  readonly #look: SharedLook<Seen<T>>;
  readonly #unclaimed: Unclaimed<T> | undefined;

  /** `ownerLabel`: the label with the UID of the backup or restore. */
  constructor(setting: Setting, resource: Resource<T>, ownerLabel: string) {
    this.#setting = setting;
    this.#resource = resource;
    this.#look = new SharedLook(async ({ namespace = '', uid }, signal) => {
      const scope = { namespace, labelSelector: `${ownerLabel}=${uid}`, signal };
      const seen = await setting.client.collect(resource, scope, (movement) => {
        const id = movement.metadata.labels?.[OPERATION_ID];
        return id === undefined ? [] : [[id, seenOf(movement, resource.kind)] as const];
      });
      const ids = seen.map(([id]) => id);
      const doubled = new Set(ids.toSorted().filter((id, i, all) => id === all[i - 1]));
      return new Map(seen.filter(([id]) => !doubled.has(id)));
    });
    this.#unclaimed = setting.unclaimed && new Unclaimed(setting, setting.unclaimed, resource);
  }

  /** Creates the movement, or finds that of an earlier attempt, which has the same name. */
  async begin(movement: NewObject<T>, { signal }: CallContext): Promise<T> {
    const { client } = this.#setting;
    const { namespace = '', name = '', labels } = movement.metadata;
    try {
      return await patiently(() => client.create(this.#resource, movement, { signal }), signal);
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      const found = await patiently(
        () => client.get(this.#resource, { namespace, name }, { signal }),
        signal,
      );
      if (found.metadata.labels?.[OPERATION_ID] === labels?.[OPERATION_ID]) return found;
      throw error;
    }
  }

  /**
   * Like `begin`, for a movement whose target does not exist yet. The movement of an earlier
   * attempt may have failed while it waited for the target. No data moved then, so it is created
   * again. Throws `WAIT_TIMEOUT` if the failed one stays: nothing would fill its target.
   */
  async beginAgain(movement: NewObject<T>, context: CallContext): Promise<T> {
    const { client } = this.#setting;
    const { signal } = context;
    const found = await this.begin(movement, context);
    if (found.status?.phase !== 'Failed') return found;
    const { namespace, name, uid } = found.metadata;
    const remove = () => client.delete(this.#resource, found.metadata, { uid, signal });
    await patiently(remove, signal);
    // The finalizer stays until the agent has cleaned up.
    const look = (now: T | undefined): true | undefined => now?.metadata.uid !== uid || undefined;
    const options = { signal, timeoutMs: DELETION_MS, awayMsMax: 0 };
    try {
      await waitFor(client, this.#resource, { namespace, name }, look, options);
    } catch (cause) {
      if (!isCode(cause, 'WAIT_TIMEOUT')) throw cause;
      const text = `${this.#resource.kind} ${name} of an earlier try has failed, and is still being deleted: restore again when it is gone`;
      throw new CodedError('WAIT_TIMEOUT', text, { cause });
    }
    return this.begin(movement, context);
  }

  /**
   * The progress that Velero shows, and the end of the operation. Velero fails an operation at the
   * first error, so an unavailable API server is not an error here: the next poll asks again.
   * Throws for an operation ID that is not ours.
   */
  async progress(
    owner: Owner,
    operationId: string,
    { signal }: CallContext,
  ): Promise<OperationProgress> {
    if (!ID.test(operationId)) throw invalidOperationId(operationId);
    const seen =
      (await this.#look.answer(owner, operationId, signal)) ??
      (await this.#see(owner, operationId, signal));
    const { progress, unclaimed } = seen;
    if (!this.#unclaimed) return progress;
    if (!unclaimed) {
      this.#unclaimed.forget(operationId);
      return progress;
    }
    const { waitsFor, failed } = await this.#unclaimed.look(operationId, unclaimed, signal);
    if (failed !== undefined) return { ...progress, completed: true, err: failed };
    return waitsFor === undefined ? progress : { ...progress, description: waitsFor };
  }

  /** Reads a single movement. */
  async #see(owner: Owner, operationId: string, signal: AbortSignal): Promise<Seen<T>> {
    const { kind } = this.#resource;
    const { namespace = '' } = owner;
    let found: T[];
    try {
      found = await this.#find(namespace, operationId, signal);
    } catch (error) {
      if (!isAway(error)) throw error;
      const { logger } = this.#setting;
      logger.info({ operationId, reason: messageOf(error) }, 'the progress is not known now');
      return { progress: UNKNOWN };
    }
    const [movement] = found;
    if (!movement) {
      const err = `the ${kind} of this operation was deleted`;
      return { progress: { ...UNKNOWN, completed: true, err } };
    }
    if (found.length > 1) {
      throw new CodedError(
        'AMBIGUOUS_OPERATION',
        `find multiple ${kind}s of operation ${operationId}`,
      );
    }
    return seenOf(movement, kind);
  }

  /** Requests the cancel and waits up to a minute for the end. Throws if the request fails. */
  async cancel(namespace: string, operationId: string, { signal }: CallContext): Promise<void> {
    const { client, logger } = this.#setting;
    const found = await patiently(() => this.#find(namespace, operationId, signal), signal);
    for (const { metadata, status } of found) {
      const ref = { namespace, name: metadata.name };
      const fields = { operationId, [this.#resource.kind]: metadata.name };
      if (isMovementOver(status?.phase)) continue;
      await patiently(
        () => client.patch(this.#resource, ref, { spec: { cancel: true } }, { signal }),
        signal,
      );
      try {
        const look = (now: T | undefined): string | undefined => {
          if (!now) return 'deleted';
          const phase = now.status?.phase ?? '';
          return isMovementOver(phase) ? phase : undefined;
        };
        const options = { signal, timeoutMs: CANCEL_MS, awayMsMax: 0 };
        const phase = await waitFor(client, this.#resource, ref, look, options);
        logger.info({ ...fields, phase }, 'the operation was canceled');
      } catch (error) {
        if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
        logger.warn(fields, 'the operation was asked to end, and has not ended yet');
      }
    }
  }

  async #find(namespace: string, operationId: string, signal: AbortSignal): Promise<T[]> {
    if (!ID.test(operationId)) throw invalidOperationId(operationId);
    const labelSelector = `${OPERATION_ID}=${operationId}`;
    return this.#setting.client.list(this.#resource, { namespace, labelSelector, signal });
  }
}

interface Seen<T> {
  readonly progress: OperationProgress;
  /** The movement, if no agent has begun it. */
  readonly unclaimed?: T;
}

const seenOf = <T extends Movement>(movement: T, kind: string): Seen<T> => ({
  progress: progressOf(movement, kind),
  ...(isUnclaimed(movement) && { unclaimed: movement }),
});

function progressOf({ status = {} }: Movement, kind: string): OperationProgress {
  const { phase, progress, message = '', startTimestamp, completionTimestamp } = status;
  if (phase === undefined || isNew(phase)) return UNKNOWN;
  const done = progress?.bytesDone ?? 0;
  const total = progress?.totalBytes ?? 0;
  const errors: Partial<Record<string, string>> = {
    // A host reads an empty text as success.
    Failed: message === '' ? `${kind} failed` : message,
    Canceled: `${kind} is canceled`,
  };
  return {
    completed: isMovementOver(phase),
    err: errors[phase] ?? '',
    // The last report may predate the last byte.
    nCompleted: phase === 'Completed' ? Math.max(done, total) : done,
    nTotal: phase === 'Completed' ? Math.max(done, total) : total,
    operationUnits: 'Bytes',
    description: phase,
    started: startTimestamp ?? undefined,
    updated: completionTimestamp ?? undefined,
  };
}
