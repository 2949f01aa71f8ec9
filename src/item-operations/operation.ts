import { z } from 'zod';
import {
  always,
  goStruct,
  listOf,
  nested,
  type Nanoseconds,
  omitEmpty,
  rfc3339Seconds,
} from '../base/index.ts';
import type { ResourceIdentifier } from '../plugin/index.ts';

/** All phases of an operation. A canceled operation is Failed. */
export type OperationPhase = 'New' | 'InProgress' | 'Completed' | 'Failed';

/** Velero gives these Go fields no JSON names, so they have capitals. */
const identifierSchema = z.looseObject({
  Group: z.string().optional().default(''),
  Resource: z.string().optional().default(''),
  Namespace: z.string().optional().default(''),
  Name: z.string().optional().default(''),
});
export type RecordedIdentifier = z.infer<typeof identifierSchema>;

const amount = z.union([z.number(), z.bigint()]);
const statusSchema = z.looseObject({
  /** An {@link OperationPhase}. Other values, from newer programs, are kept. */
  phase: z.string().optional(),
  error: z.string().optional(),
  nCompleted: amount.optional(),
  nTotal: amount.optional(),
  operationUnits: z.string().optional(),
  description: z.string().optional(),
  /** RFC 3339 in whole seconds. */
  created: z.string().nullish(),
  started: z.string().nullish(),
  updated: z.string().nullish(),
});
export type OperationStatus = z.infer<typeof statusSchema>;

const specSchema = z.looseObject({
  operationID: z.string(),
  resourceIdentifier: identifierSchema,
});
export const backupOperationSchema = z.looseObject({
  spec: specSchema.extend({
    backupName: z.string().optional().default(''),
    backupUID: z.string().optional().default(''),
    backupItemAction: z.string(),
    postOperationItems: z.array(identifierSchema).nullish(),
  }),
  status: statusSchema,
});
export const restoreOperationSchema = z.looseObject({
  spec: specSchema.extend({
    restoreName: z.string().optional().default(''),
    restoreUID: z.string().optional().default(''),
    restoreItemAction: z.string(),
  }),
  status: statusSchema,
});

/** Velero's record, pkg/itemoperation (v1.18.3). Unknown fields are kept. */
export type BackupOperation = z.infer<typeof backupOperationSchema>;
export type RestoreOperation = z.infer<typeof restoreOperationSchema>;
export type Operation = BackupOperation | RestoreOperation;

const IDENTIFIER = goStruct({
  Group: always(''),
  Resource: always(''),
  Namespace: always(''),
  Name: always(''),
});
const STATUS = goStruct({
  phase: omitEmpty,
  error: omitEmpty,
  nCompleted: omitEmpty,
  nTotal: omitEmpty,
  operationUnits: omitEmpty,
  description: omitEmpty,
  created: omitEmpty,
  started: omitEmpty,
  updated: omitEmpty,
});
const BACKUP_OPERATION = goStruct({
  spec: nested(
    goStruct({
      backupName: always(''),
      backupUID: always(''),
      backupItemAction: always(''),
      resourceIdentifier: nested(IDENTIFIER),
      operationID: always(''),
      postOperationItems: listOf(IDENTIFIER),
    }),
  ),
  status: nested(STATUS),
});
const RESTORE_OPERATION = goStruct({
  spec: nested(
    goStruct({
      restoreName: always(''),
      restoreUID: always(''),
      restoreItemAction: always(''),
      resourceIdentifier: nested(IDENTIFIER),
      operationID: always(''),
    }),
  ),
  status: nested(STATUS),
});

/** The record with its fields in Velero's order. */
export const orderedRecord = (operation: Operation): object =>
  (isOfBackup(operation) ? BACKUP_OPERATION : RESTORE_OPERATION)(operation) as object;

export const isOfBackup = (operation: Operation): operation is BackupOperation =>
  'backupItemAction' in operation.spec;

/** The plugin that began the operation and answers questions about it. */
export const actionOf = (operation: Operation): string =>
  isOfBackup(operation) ? operation.spec.backupItemAction : operation.spec.restoreItemAction;

/** UID of the Backup or Restore; `''` in records without one. */
export const subjectUidOf = (operation: Operation): string =>
  isOfBackup(operation) ? operation.spec.backupUID : operation.spec.restoreUID;

/** Key of an operation. Several actions may each begin an operation for one item. */
export const keyOf = (operation: Operation): string =>
  `${actionOf(operation)} ${operation.spec.operationID}`;

/** Whether to poll the plugin. Not for an empty phase, as in Velero, which never writes one. */
export const isRunning = ({ status: { phase } }: Operation): boolean =>
  phase === 'New' || phase === 'InProgress';

export const isFinal = ({ status: { phase } }: Operation): boolean =>
  phase === 'Completed' || phase === 'Failed';

/** The Backup or Restore that owns operations. */
export interface Subject {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
  readonly uid: string;
  /** The BackupStorageLocation, for a subject that the cluster may no longer have. */
  readonly location?: string | undefined;
  /** True: trust only a file that a server with the repository password wrote. */
  readonly isSealed?: boolean | undefined;
}

export interface BegunOperation {
  readonly action: string;
  readonly operationId: string;
  /** The item before the action changed it; in a restore, with the target namespace. */
  readonly item: ResourceIdentifier;
  readonly postOperationItems?: readonly ResourceIdentifier[];
  /** RFC 3339; by default the current time. */
  readonly created?: string | undefined;
}

export function newOperation(
  { kind, name, uid }: Subject,
  { action, operationId, item, postOperationItems = [], created }: BegunOperation,
  nowNs: Nanoseconds,
): Operation {
  const common = { resourceIdentifier: recorded(item), operationID: operationId };
  const status = { phase: 'New', created: created ?? rfc3339Seconds(nowNs) };
  if (kind === 'Restore') {
    const spec = { restoreName: name, restoreUID: uid, restoreItemAction: action, ...common };
    return { spec, status };
  }
  const items = postOperationItems.length === 0 ? null : postOperationItems.map(recorded);
  const spec = { backupName: name, backupUID: uid, backupItemAction: action, ...common };
  return { spec: { ...spec, postOperationItems: items }, status };
}

const recorded = ({
  group,
  resource,
  namespace,
  name,
}: ResourceIdentifier): RecordedIdentifier => ({
  Group: group,
  Resource: resource,
  Namespace: namespace,
  Name: name,
});

/** Items to store again after all operations, also failed ones. Without duplicates. */
export function postOperationItems(operations: readonly Operation[]): ResourceIdentifier[] {
  const items = new Map<string, ResourceIdentifier>();
  for (const operation of operations) {
    if (!isOfBackup(operation)) continue;
    for (const { Group, Resource, Namespace, Name } of operation.spec.postOperationItems ?? []) {
      const item = { group: Group, resource: Resource, namespace: Namespace, name: Name };
      items.set(JSON.stringify(item), item);
    }
  }
  return [...items.values()];
}
