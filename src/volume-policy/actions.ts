const VELERO_ACTIONS = ['skip', 'fs-backup', 'snapshot', 'custom'] as const;
/** Actions for one kind of snapshot each. Velero refuses a document with such an action. */
const OWN_ACTIONS = ['snapshot-csi', 'snapshot-native', 'snapshot-datamover'] as const;

export type ActionType = (typeof VELERO_ACTIONS)[number] | (typeof OWN_ACTIONS)[number];

export const ACTION_TYPES: readonly ActionType[] = [...VELERO_ACTIONS, ...OWN_ACTIONS];

export interface PolicyAction {
  readonly type: ActionType;
  readonly parameters?: Readonly<Record<string, unknown>> | undefined;
}

export const isActionType = (text: string): text is ActionType =>
  (ACTION_TYPES as readonly string[]).includes(text);

/** Whether Velero 1.18 knows the action. */
export const isOfVelero = (type: ActionType): boolean =>
  (VELERO_ACTIONS as readonly string[]).includes(type);

export const isSnapshotAction = (type: ActionType): boolean =>
  type === 'snapshot' || !isOfVelero(type);

/** Parameters that a backup reads, with their actions. Plugins read parameters of `custom`. */
export const PARAMETERS: ReadonlyMap<string, readonly ActionType[]> = new Map([
  ['dataMover', ['snapshot', 'snapshot-datamover']],
  ['snapshotClass', ['snapshot', 'snapshot-csi', 'snapshot-datamover']],
]);
