import { isCode, messageOf } from '../../../base/index.ts';
import {
  isMovementOver,
  isNew,
  isPodOver,
  type Pod,
  POD_VOLUME_RESTORES,
  PODS,
  type PodVolumeRestore,
  type Restore,
  waitFor,
} from '../../../kube/index.ts';
import type {
  CallContext,
  OperationProgress,
  RestoreItemAction,
  RestoreOutput,
} from '../../contract.ts';
import { NOTHING_KNOWN, progressOf } from './pod-volume-operation.ts';
import { isAway, patiently, type Setting } from '../settings.ts';
import { SharedLook } from './shared-reads.ts';
import { RESTORE_UID } from '../velero-names.ts';

const CANCEL_MS = 60_000;
/** Interval for checking why nobody begins a restore: two requests each time. Our choice. */
const LOOK_MS = 60_000;
/** A shorter absence is an agent's restart. Our choice: longer than a node needs for a start. */
const AGENT_MS = 120_000;
const WAIT_CONTAINER = 'restore-wait';

interface Waiting {
  lookedAtMs: number;
  withoutAgentSinceMs: number | undefined;
}

/**
 * Answers for PodVolumeRestores that our server creates as operations of a restore; their names are
 * the operation IDs. Never begins one, because it applies to no item. An agent begins the restore
 * when the pod waits on its node.
 *
 * If no agent ever will, the operation fails with the reason. The PodVolumeRestore is canceled, so
 * that it does not begin after the operation has ended. Velero waits for the time-out instead.
 */
export class PodVolumeRestoreOperation implements RestoreItemAction {
  readonly #setting: Setting;
  readonly #look: SharedLook<PodVolumeRestore>;
  readonly #waiting = new Map<string, Waiting>();

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#look = new SharedLook(async ({ namespace = '', uid }, signal) => {
      const scope = { namespace, labelSelector: `${RESTORE_UID}=${uid}`, signal };
      const seen = await setting.client.collect(POD_VOLUME_RESTORES, scope, (found) => [
        [found.metadata.name, found] as const,
      ]);
      return new Map(seen);
    });
  }

  execute(): Promise<RestoreOutput> {
    return Promise.resolve({});
  }

  async progress(
    operationId: string,
    restore: Restore,
    { signal }: CallContext,
  ): Promise<OperationProgress> {
    try {
      const ref = { namespace: restore.metadata.namespace, name: operationId };
      const found =
        (await this.#look.answer(restore.metadata, operationId, signal)) ??
        (await this.#setting.client.find(POD_VOLUME_RESTORES, ref, { signal }));
      if (!found) {
        this.#waiting.delete(operationId);
        const err = 'the PodVolumeRestore of this operation was deleted';
        return { ...NOTHING_KNOWN, completed: true, err };
      }
      const progress = progressOf(found, 'restore');
      const hindrance = await this.#hindrance(found, signal);
      if (hindrance === undefined) return progress;
      await this.#askToEnd(found, signal);
      this.#waiting.delete(operationId);
      return { ...progress, completed: true, err: hindrance };
    } catch (error) {
      if (!isAway(error)) throw error;
      const reason = messageOf(error);
      this.#setting.logger.info({ operationId, reason }, 'the progress is not known now');
      return NOTHING_KNOWN;
    }
  }

  /** Why no agent will ever begin it; undefined if an agent may, or already has. */
  async #hindrance(found: PodVolumeRestore, signal: AbortSignal): Promise<string | undefined> {
    const { name } = found.metadata;
    if (!isNew(found.status?.phase)) {
      this.#waiting.delete(name);
      return undefined;
    }
    const nowMs = performance.now();
    const waiting = this.#waiting.get(name) ?? {
      lookedAtMs: nowMs,
      withoutAgentSinceMs: undefined,
    };
    const isFirst = !this.#waiting.has(name);
    this.#waiting.set(name, waiting);
    // The pod has just been created, so it exists.
    if (isFirst || nowMs - waiting.lookedAtMs < LOOK_MS) return undefined;
    waiting.lookedAtMs = nowMs;
    return this.#whyNever(found, waiting, signal);
  }

  async #whyNever(
    { metadata, spec }: PodVolumeRestore,
    waiting: Waiting,
    signal: AbortSignal,
  ): Promise<string | undefined> {
    const { client } = this.#setting;
    const { namespace = '', name = '', uid } = spec.pod;
    const about = `volume ${spec.volume} of pod ${namespace}/${name}`;
    const pod: Pod | undefined = await client.find(PODS, { namespace, name }, { signal });
    if (!pod || (uid !== undefined && pod.metadata.uid !== uid)) {
      return `pod volume restore failed: the pod was deleted before its volume was restored (${about})`;
    }
    const wait = pod.status?.initContainerStatuses?.find((each) => each.name === WAIT_CONTAINER);
    const phase = pod.status?.phase ?? '';
    if (wait?.state?.terminated || isPodOver(phase)) {
      return `pod volume restore failed: the pod no longer waits for its volume (${about})`;
    }
    const { nodeName = '' } = pod.spec;
    if (nodeName === '') return undefined;
    const agents = await client.list(PODS, {
      namespace: metadata.namespace,
      labelSelector: 'role=node-agent',
      signal,
      fieldSelector: `spec.nodeName=${nodeName}`,
    });
    if (agents.some(({ status }) => status?.phase === 'Running')) {
      waiting.withoutAgentSinceMs = undefined;
      return undefined;
    }
    const nowMs = performance.now();
    waiting.withoutAgentSinceMs ??= nowMs;
    if (nowMs - waiting.withoutAgentSinceMs < AGENT_MS) return undefined;
    return `node-agent pod is not running in node ${nodeName}: daemonset pod not found in running state in node ${nodeName} (${about})`;
  }

  async #askToEnd({ metadata }: PodVolumeRestore, signal: AbortSignal): Promise<void> {
    const ref = { namespace: metadata.namespace, name: metadata.name };
    const { client } = this.#setting;
    try {
      await client.patch(POD_VOLUME_RESTORES, ref, { spec: { cancel: true } }, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }

  async cancel(operationId: string, restore: Restore, { signal }: CallContext): Promise<void> {
    const { client, logger } = this.#setting;
    const ref = { namespace: restore.metadata.namespace, name: operationId };
    const found = await patiently(() => client.find(POD_VOLUME_RESTORES, ref, { signal }), signal);
    if (!found || isMovementOver(found.status?.phase)) return;
    await patiently(() => this.#askToEnd(found, signal), signal);
    const look = (now: PodVolumeRestore | undefined): true | undefined =>
      !now || isMovementOver(now.status?.phase) ? true : undefined;
    try {
      const bounds = { signal, timeoutMs: CANCEL_MS, awayMsMax: 0 };
      await waitFor(client, POD_VOLUME_RESTORES, ref, look, bounds);
    } catch (error) {
      if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
      logger.warn({ operationId }, 'the operation was asked to end, and has not ended yet');
    }
  }
}
