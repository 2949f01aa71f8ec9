import { CodedError, lookup, untilAborted } from '../../base/index.ts';
import type {
  BackupItemAction,
  CallContext,
  DeleteItemAction,
  ItemBlockAction,
  ObjectStore,
  OperationProgress,
  ResourceIdentifier,
  ResourceSelector,
  RestoreItemAction,
  VolumeSnapshotter,
} from '../contract.ts';
import { withoutOperations } from '../operation-errors.ts';
import {
  bytesOf,
  durationMsFrom,
  entriesOf,
  objectFrom,
  progressFrom,
} from '../protocol/conversions.ts';
import {
  BACKUP_ITEM_ACTION,
  DELETE_ITEM_ACTION,
  ITEM_BLOCK_ACTION,
  type Method,
  OBJECT_STORE,
  RESTORE_ITEM_ACTION,
  SERVICES,
  VOLUME_SNAPSHOTTER,
} from '../protocol/messages.ts';
import type { Decoded } from '../protocol/wire.ts';
import type { PluginProcess } from './plugin-process.ts';
import type { HostedKind, PluginId } from './registry.ts';

/** Velero sends 16 KiB; Go programs accept 4 MiB. Our choice: a quarter of the messages. */
const BODY_BYTES = 64 << 10;

export interface Remote extends PluginId {
  readonly command: string;
  /** The process for the next call. `operationId`: the operation that the call is about. */
  readonly ready: (operationId?: string) => Promise<PluginProcess>;
  /** Called when an action has begun an operation, which only its process may know. */
  readonly begun?: (operationId: string, process: PluginProcess) => void;
  /** Called when an operation has ended. */
  readonly over?: (operationId: string) => void;
  readonly callMsMax: number;
  readonly streamMsMax: number;
}

/** Calls one plugin of a process by its name. */
class Caller {
  readonly remote: Remote;
  readonly #service: string;

  constructor(remote: Remote) {
    this.remote = remote;
    this.#service = SERVICES[remote.kind];
  }

  async call(
    [name, method]: readonly [string, Method],
    request: Decoded,
    { signal }: CallContext,
    process?: PluginProcess,
  ): Promise<Decoded> {
    signal.throwIfAborted();
    const { remote } = this;
    const asked = process ?? (await this.ready(signal));
    const options = { signal, waitMsMax: remote.callMsMax };
    return asked.call(this.#service, name, method, this.request(request), options);
  }

  /** Waits for the process. Giving up does not stop the start: other callers may wait too. */
  ready(signal: AbortSignal, operationId?: string): Promise<PluginProcess> {
    return unlessAborted(this.remote.ready(operationId), signal);
  }

  request(fields: Decoded): Decoded {
    return { ...fields, plugin: this.remote.name };
  }

  get service(): string {
    return this.#service;
  }

  async appliesTo(context: CallContext): Promise<ResourceSelector> {
    const answer = await this.call(['AppliesTo', BACKUP_ITEM_ACTION.AppliesTo], {}, context);
    return answer.selector ?? {};
  }

  async progress(
    method: Method,
    id: string,
    subject: Decoded,
    context: CallContext,
  ): Promise<OperationProgress> {
    const process = await this.ready(context.signal, id);
    const request = { ...subject, operationId: id };
    const progress = progressFrom(await this.call(['Progress', method], request, context, process));
    if (!progress) throw this.badAnswer('no progress');
    if (progress.completed) this.remote.over?.(id);
    return progress;
  }

  async cancel(method: Method, id: string, subject: Decoded, context: CallContext): Promise<void> {
    const process = await this.ready(context.signal, id);
    await this.call(['Cancel', method], { ...subject, operationId: id }, context, process);
    this.remote.over?.(id);
  }

  badAnswer(what: string): CodedError {
    const { command, name, kind } = this.remote;
    const text = `${kind} ${name} of plugin ${command} sent ${what} as its answer`;
    return new CodedError('PLUGIN_MESSAGE', text, { facts: { command, name } });
  }

  /** Start of an error message about a returned item. */
  get answered(): string {
    return `${this.remote.kind} ${this.remote.name} of plugin ${this.remote.command} sent as item`;
  }
}

async function unlessAborted<T>(task: Promise<T>, signal: AbortSignal): Promise<T> {
  await untilAborted(signal, task);
  signal.throwIfAborted();
  return task;
}

/** An action with its selector. */
export interface HostedAction<Action> extends PluginId {
  readonly action: Action;
  appliesTo(context: CallContext): Promise<ResourceSelector>;
}

const hosted = <Action>(caller: Caller, action: Action): HostedAction<Action> => ({
  kind: caller.remote.kind,
  name: caller.remote.name,
  action,
  appliesTo: (context) => caller.appliesTo(context),
});

const isFirstVersion = (kind: HostedKind): boolean =>
  kind === 'BackupItemAction' || kind === 'RestoreItemAction';

const identifiers = (answer: Decoded, name: string): readonly ResourceIdentifier[] =>
  (lookup(answer, name) ?? []) as ResourceIdentifier[];

/** Version 1 behaves like a version 2 action without operations. */
export function remoteBackupAction(remote: Remote): HostedAction<Required<BackupItemAction>> {
  const caller = new Caller(remote);
  const { Execute, Progress, Cancel } = BACKUP_ITEM_ACTION;
  const isFirst = isFirstVersion(remote.kind);
  return hosted(caller, {
    async execute(item, backup, context) {
      const process = await caller.ready(context.signal);
      const request = { item: bytesOf(item), backup: bytesOf(backup) };
      const answer = await caller.call(['Execute', Execute], request, context, process);
      const operationId = isFirst ? '' : (answer.operationId as string);
      if (operationId !== '') remote.begun?.(operationId, process);
      return {
        item: objectFrom(answer.item as Buffer, caller.answered),
        additionalItems: identifiers(answer, 'additionalItems'),
        operationId,
        postOperationItems: isFirst ? [] : identifiers(answer, 'postOperationItems'),
      };
    },
    async progress(id, backup, context) {
      if (isFirst) throw withoutOperations();
      return caller.progress(Progress, id, { backup: bytesOf(backup) }, context);
    },
    async cancel(id, backup, context) {
      if (!isFirst) await caller.cancel(Cancel, id, { backup: bytesOf(backup) }, context);
    },
  });
}

export function remoteRestoreAction(remote: Remote): HostedAction<Required<RestoreItemAction>> {
  const caller = new Caller(remote);
  const { Execute, Progress, Cancel, AreAdditionalItemsReady } = RESTORE_ITEM_ACTION;
  const isFirst = isFirstVersion(remote.kind);
  return hosted(caller, {
    async execute({ item, itemFromBackup, restore }, context) {
      const process = await caller.ready(context.signal);
      const request = {
        item: bytesOf(item),
        itemFromBackup: bytesOf(itemFromBackup),
        restore: bytesOf(restore),
      };
      const answer = await caller.call(['Execute', Execute], request, context, process);
      const operationId = isFirst ? '' : (answer.operationId as string);
      if (operationId !== '') remote.begun?.(operationId, process);
      return {
        item: objectFrom(answer.item as Buffer, caller.answered),
        additionalItems: identifiers(answer, 'additionalItems'),
        skipRestore: answer.skipRestore as boolean,
        operationId,
        waitForAdditionalItems: !isFirst && (answer.waitForAdditionalItems as boolean),
        additionalItemsReadyTimeoutMs: isFirst
          ? 0
          : durationMsFrom(answer.additionalItemsReadyTimeout),
      };
    },
    async progress(id, restore, context) {
      if (isFirst) throw withoutOperations();
      return caller.progress(Progress, id, { restore: bytesOf(restore) }, context);
    },
    async cancel(id, restore, context) {
      if (!isFirst) await caller.cancel(Cancel, id, { restore: bytesOf(restore) }, context);
    },
    async areAdditionalItemsReady(items, restore, context) {
      if (isFirst) return true;
      const request = { restore: bytesOf(restore), additionalItems: items };
      const method = ['AreAdditionalItemsReady', AreAdditionalItemsReady] as const;
      return (await caller.call(method, request, context)).ready as boolean;
    },
  });
}

export function remoteDeleteAction(remote: Remote): HostedAction<DeleteItemAction> {
  const caller = new Caller(remote);
  return hosted(caller, {
    async execute(item, backup, context) {
      const request = { item: bytesOf(item), backup: bytesOf(backup) };
      await caller.call(['Execute', DELETE_ITEM_ACTION.Execute], request, context);
    },
  });
}

export function remoteBlockAction(remote: Remote): HostedAction<ItemBlockAction> {
  const caller = new Caller(remote);
  return hosted(caller, {
    async relatedItems(item, backup, context) {
      const request = { item: bytesOf(item), backup: bytesOf(backup) };
      const method = ['GetRelatedItems', ITEM_BLOCK_ACTION.GetRelatedItems] as const;
      return identifiers(await caller.call(method, request, context), 'relatedItems');
    },
  });
}

/** A plugin that is configured once per process, before its first call. */
function configured<Name extends string>(
  remote: Remote,
  config: Readonly<Record<string, string>>,
  methods: Readonly<Record<Name, Method>>,
) {
  const caller = new Caller(remote);
  const ready = async ({ signal }: CallContext): Promise<PluginProcess> => {
    signal.throwIfAborted();
    const process = await caller.ready(signal);
    const request = caller.request({ config: entriesOf(config) });
    // Without a signal: if this caller gives up, others may still wait.
    const init = process.once(`${caller.service}/${remote.name}`, async () => {
      const options = { waitMsMax: remote.streamMsMax };
      await process.call(caller.service, 'Init', OBJECT_STORE.Init, request, options);
    });
    await unlessAborted(init, signal);
    return process;
  };
  const call = async (name: Name, request: Decoded, context: CallContext): Promise<Decoded> =>
    caller.call([name, methods[name]], request, context, await ready(context));
  return { caller, ready, call };
}

/** Configured by the first call, which fails if the configuration is wrong. */
export function remoteObjectStore(
  remote: Remote,
  config: Readonly<Record<string, string>>,
): ObjectStore {
  const { caller, ready, call } = configured(remote, config, OBJECT_STORE);
  const { service } = caller;
  const options = ({ signal }: CallContext): { signal: AbortSignal; waitMsMax: number } => ({
    signal,
    waitMsMax: remote.streamMsMax,
  });
  return {
    async put(bucket, key, body, context) {
      const process = await ready(context);
      const { PutObject } = OBJECT_STORE;
      const requests = bodyOf(body, (part) => caller.request({ bucket, key, body: part }));
      await process.write(service, 'PutObject', PutObject, requests, options(context));
    },
    async *get(bucket, key, context) {
      const process = await ready(context);
      const { GetObject } = OBJECT_STORE;
      const request = caller.request({ bucket, key });
      const parts = process.read(service, 'GetObject', GetObject, request, options(context));
      for await (const { data } of parts) yield data as Buffer;
    },
    exists: async (bucket, key, context) =>
      (await call('ObjectExists', { bucket, key }, context)).exists as boolean,
    list: async (bucket, prefix, context) =>
      (await call('ListObjects', { bucket, prefix }, context)).keys as string[],
    listCommonPrefixes: async (bucket, delimiter, prefix, context) =>
      (await call('ListCommonPrefixes', { bucket, delimiter, prefix }, context))
        .prefixes as string[],
    async delete(bucket, key, context) {
      await call('DeleteObject', { bucket, key }, context);
    },
    signedUrl: async (bucket, key, ttlMs, context) =>
      (await call('CreateSignedURL', { bucket, key, ttl: ttlMs * 1e6 }, context)).url as string,
  };
}

/**
 * Splits a body into requests of at most {@link BODY_BYTES}. An empty body is one request without
 * bytes, because Velero's programs need at least one request.
 */
async function* bodyOf(
  body: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  request: (part: Uint8Array) => Decoded,
): AsyncGenerator<Decoded> {
  let isEmpty = true;
  for await (const bytes of body) {
    for (let at = 0; at < bytes.length; at += BODY_BYTES) {
      isEmpty = false;
      yield request(bytes.subarray(at, at + BODY_BYTES));
    }
  }
  if (isEmpty) yield request(Buffer.alloc(0));
}

export function remoteSnapshotter(
  remote: Remote,
  config: Readonly<Record<string, string>>,
): VolumeSnapshotter {
  const { caller, call } = configured(remote, config, VOLUME_SNAPSHOTTER);
  return {
    createVolume: async (from, context) =>
      (await call('CreateVolumeFromSnapshot', { ...from }, context)).volumeId as string,
    async volumeInfo(volumeId, zone, context) {
      const answer = await call('GetVolumeInfo', { volumeId, zone }, context);
      const iops = answer.iops as number;
      return { volumeType: answer.volumeType as string, iops: iops === 0 ? undefined : iops };
    },
    createSnapshot: async (volumeId, zone, tags, context) =>
      (await call('CreateSnapshot', { volumeId, zone, tags: entriesOf(tags) }, context))
        .snapshotId as string,
    async deleteSnapshot(snapshotId, context) {
      await call('DeleteSnapshot', { snapshotId }, context);
    },
    volumeIdOf: async (volume, context) =>
      (await call('GetVolumeID', { persistentVolume: bytesOf(volume) }, context))
        .volumeId as string,
    async withVolumeId(volume, volumeId, context) {
      const request = { persistentVolume: bytesOf(volume), volumeId };
      const answer = await call('SetVolumeID', request, context);
      return objectFrom(answer.persistentVolume as Buffer, caller.answered);
    },
  };
}
