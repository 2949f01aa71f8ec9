import type { Field, Message, Scalar } from './wire.ts';

/**
 * The messages of go-plugin's services and of Velero's, by field number. Sources: go-plugin v1.7.0
 * (internal/plugin/*.proto) and Velero v1.18.3 (pkg/plugin/proto). google.rpc.Status and
 * google.protobuf follow their published definitions.
 */
const field = (name: string, type: Scalar | Message): Field => ({ name, type });
const list = (name: string, type: Scalar | Message): Field => ({ name, type, isList: true });

export const EMPTY: Message = {};

export const HEALTH_REQUEST: Message = { 1: field('service', 'string') };
/** `status`: 1 is SERVING, 3 is SERVICE_UNKNOWN. */
export const HEALTH_RESPONSE: Message = { 1: field('status', 'int32') };

export const CONNECTION_INFO: Message = {
  1: field('serviceId', 'uint32'),
  2: field('network', 'string'),
  3: field('address', 'string'),
  4: field('knock', {
    1: field('knock', 'bool'),
    2: field('ack', 'bool'),
    3: field('error', 'string'),
  }),
};

/** `channel`: 1 is stdout, 2 is stderr. */
export const STDIO_DATA: Message = { 1: field('channel', 'int32'), 2: field('data', 'bytes') };

const STACK_FRAME: Message = {
  1: field('file', 'string'),
  2: field('line', 'int32'),
  3: field('function', 'string'),
};
export const STACK: Message = { 1: list('frames', STACK_FRAME) };
export const STACK_URL = 'type.googleapis.com/generated.Stack';

export const STATUS: Message = {
  1: field('code', 'int32'),
  2: field('message', 'string'),
  3: list('details', { 1: field('typeUrl', 'string'), 2: field('value', 'bytes') }),
};

const TIMESTAMP: Message = { 1: field('seconds', 'int64'), 2: field('nanos', 'int32') };
const DURATION = TIMESTAMP;

const IDENTIFIER: Message = {
  1: field('group', 'string'),
  2: field('resource', 'string'),
  3: field('namespace', 'string'),
  4: field('name', 'string'),
};
const SELECTOR: Message = {
  1: list('includedNamespaces', 'string'),
  2: list('excludedNamespaces', 'string'),
  3: list('includedResources', 'string'),
  4: list('excludedResources', 'string'),
  5: field('selector', 'string'),
};
const PROGRESS: Message = {
  1: field('completed', 'bool'),
  2: field('err', 'string'),
  3: field('nCompleted', 'int64'),
  4: field('nTotal', 'int64'),
  5: field('operationUnits', 'string'),
  6: field('description', 'string'),
  7: field('started', TIMESTAMP),
  8: field('updated', TIMESTAMP),
};

const PLUGIN = field('plugin', 'string');

export interface Method {
  readonly request: Message;
  readonly response: Message;
}

const APPLIES_TO: Method = {
  request: { 1: PLUGIN },
  response: { 1: field('selector', SELECTOR) },
};

export const LIST_PLUGINS: Method = {
  request: EMPTY,
  response: {
    1: list('plugins', {
      1: field('command', 'string'),
      2: field('kind', 'string'),
      3: field('name', 'string'),
    }),
  },
};

const progressOf = (subject: string): Method => ({
  request: { 1: PLUGIN, 2: field('operationId', 'string'), 3: field(subject, 'bytes') },
  response: { 1: field('progress', PROGRESS) },
});
const cancelOf = (subject: string): Method => ({
  request: { 1: PLUGIN, 2: field('operationId', 'string'), 3: field(subject, 'bytes') },
  response: EMPTY,
});

export const BACKUP_ITEM_ACTION = {
  AppliesTo: APPLIES_TO,
  Execute: {
    request: { 1: PLUGIN, 2: field('item', 'bytes'), 3: field('backup', 'bytes') },
    response: {
      1: field('item', 'bytes'),
      2: list('additionalItems', IDENTIFIER),
      3: field('operationId', 'string'),
      4: list('postOperationItems', IDENTIFIER),
    },
  },
  Progress: progressOf('backup'),
  Cancel: cancelOf('backup'),
} satisfies Record<string, Method>;

export const RESTORE_ITEM_ACTION = {
  AppliesTo: APPLIES_TO,
  Execute: {
    request: {
      1: PLUGIN,
      2: field('item', 'bytes'),
      3: field('restore', 'bytes'),
      4: field('itemFromBackup', 'bytes'),
    },
    response: {
      1: field('item', 'bytes'),
      2: list('additionalItems', IDENTIFIER),
      3: field('skipRestore', 'bool'),
      4: field('operationId', 'string'),
      5: field('waitForAdditionalItems', 'bool'),
      6: field('additionalItemsReadyTimeout', DURATION),
    },
  },
  Progress: progressOf('restore'),
  Cancel: cancelOf('restore'),
  AreAdditionalItemsReady: {
    request: { 1: PLUGIN, 2: field('restore', 'bytes'), 3: list('additionalItems', IDENTIFIER) },
    response: { 1: field('ready', 'bool') },
  },
} satisfies Record<string, Method>;

export const DELETE_ITEM_ACTION = {
  AppliesTo: APPLIES_TO,
  Execute: {
    request: { 1: PLUGIN, 2: field('item', 'bytes'), 3: field('backup', 'bytes') },
    response: EMPTY,
  },
} satisfies Record<string, Method>;

export const ITEM_BLOCK_ACTION = {
  AppliesTo: APPLIES_TO,
  GetRelatedItems: {
    request: { 1: PLUGIN, 2: field('item', 'bytes'), 3: field('backup', 'bytes') },
    response: { 1: list('relatedItems', IDENTIFIER) },
  },
} satisfies Record<string, Method>;

/** An entry of a map, which is a list on the wire. */
const ENTRY: Message = { 1: field('key', 'string'), 2: field('value', 'string') };
const BUCKET = field('bucket', 'string');
const KEY = field('key', 'string');

/** `PutObject` streams requests, `GetObject` streams responses. `ttl` is in nanoseconds. */
export const OBJECT_STORE = {
  Init: { request: { 1: PLUGIN, 2: list('config', ENTRY) }, response: EMPTY },
  PutObject: {
    request: { 1: PLUGIN, 2: BUCKET, 3: KEY, 4: field('body', 'bytes') },
    response: EMPTY,
  },
  ObjectExists: {
    request: { 1: PLUGIN, 2: BUCKET, 3: KEY },
    response: { 1: field('exists', 'bool') },
  },
  GetObject: { request: { 1: PLUGIN, 2: BUCKET, 3: KEY }, response: { 1: field('data', 'bytes') } },
  ListCommonPrefixes: {
    request: {
      1: PLUGIN,
      2: BUCKET,
      3: field('delimiter', 'string'),
      4: field('prefix', 'string'),
    },
    response: { 1: list('prefixes', 'string') },
  },
  ListObjects: {
    request: { 1: PLUGIN, 2: BUCKET, 3: field('prefix', 'string') },
    response: { 1: list('keys', 'string') },
  },
  DeleteObject: { request: { 1: PLUGIN, 2: BUCKET, 3: KEY }, response: EMPTY },
  CreateSignedURL: {
    request: { 1: PLUGIN, 2: BUCKET, 3: KEY, 4: field('ttl', 'int64') },
    response: { 1: field('url', 'string') },
  },
} satisfies Record<string, Method>;

const VOLUME_ID = field('volumeId', 'string');
const SNAPSHOT_ID = field('snapshotId', 'string');
const ZONE = field('zone', 'string');

/** `iops`: 0 if unknown. `persistentVolume` is JSON. */
export const VOLUME_SNAPSHOTTER = {
  Init: OBJECT_STORE.Init,
  CreateVolumeFromSnapshot: {
    request: {
      1: PLUGIN,
      2: SNAPSHOT_ID,
      3: field('volumeType', 'string'),
      4: ZONE,
      5: field('iops', 'int64'),
    },
    response: { 1: VOLUME_ID },
  },
  GetVolumeInfo: {
    request: { 1: PLUGIN, 2: VOLUME_ID, 3: ZONE },
    response: { 1: field('volumeType', 'string'), 2: field('iops', 'int64') },
  },
  CreateSnapshot: {
    request: { 1: PLUGIN, 2: VOLUME_ID, 3: ZONE, 4: list('tags', ENTRY) },
    response: { 1: SNAPSHOT_ID },
  },
  DeleteSnapshot: { request: { 1: PLUGIN, 2: SNAPSHOT_ID }, response: EMPTY },
  GetVolumeID: {
    request: { 1: PLUGIN, 2: field('persistentVolume', 'bytes') },
    response: { 1: VOLUME_ID },
  },
  SetVolumeID: {
    request: { 1: PLUGIN, 2: field('persistentVolume', 'bytes'), 3: VOLUME_ID },
    response: { 1: field('persistentVolume', 'bytes') },
  },
} satisfies Record<string, Method>;

/**
 * The service of each kind (pkg/plugin/framework/common/plugin_kinds.go), in Velero's order of
 * execution for one program. Messages of version 1 are those of version 2 without the last fields.
 */
export const SERVICES = {
  BackupItemAction: 'generated.BackupItemAction',
  BackupItemActionV2: 'v2.BackupItemAction',
  VolumeSnapshotter: 'generated.VolumeSnapshotter',
  ObjectStore: 'generated.ObjectStore',
  RestoreItemAction: 'generated.RestoreItemAction',
  RestoreItemActionV2: 'v2.RestoreItemAction',
  DeleteItemAction: 'generated.DeleteItemAction',
  ItemBlockAction: 'v1.ItemBlockAction',
} as const;
export const PLUGIN_LISTER = 'generated.PluginLister';
