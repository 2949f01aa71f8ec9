import { createHash } from 'node:crypto';
import { commandOf } from '../../backup/index.ts';
import { CodedError, lookup } from '../../base/index.ts';
import {
  type Container,
  type KubeObject,
  type Pod,
  type Restore,
  targetNamespace,
} from '../../kube/index.ts';
import { type Fields, isFields } from '../actions/fields.ts';
import type { RestoreAction } from '../contract.ts';
import { groupsFor, hookGroups } from './due-hooks.ts';

const KEY = 'init.hook.restore.velero.io/';
/** Velero: pkg/restorehelper/util.go, WaitInitContainer. Hooks run after the data is restored. */
const WAIT_CONTAINER = 'restore-wait';

/**
 * Adds the init containers of restore hooks to pods: after the container that waits for volumes,
 * before the pod's own. Velero: pkg/restore/actions/init_restorehook_pod_action.go. As in Velero,
 * their time-outs have no effect, because Kubernetes has none for init containers.
 */
export const initHookAction = (): RestoreAction => ({
  name: 'velero.io/init-restore-hook',
  appliesTo: { includedResources: ['pods'] },
  execute: async ({ item, restore }) => Promise.resolve({ item: withInitHooks(item, restore) }),
});

function withInitHooks(item: KubeObject, restore: Restore): KubeObject {
  const pod = item as Pod;
  const { initContainers: own = [] } = pod.spec;
  const hooks = annotated(pod, restore) ?? fromSpec(pod, restore);
  if (hooks.length === 0) return item;
  const waits = own[0]?.name === WAIT_CONTAINER ? own.slice(0, 1) : [];
  const initContainers = [...waits, ...hooks, ...own.slice(waits.length)];
  return { ...pod, spec: { ...pod.spec, initContainers } } as KubeObject;
}

function annotated({ metadata }: Pod, restore: Restore): Fields[] | undefined {
  const said = (name: string): string => lookup(metadata.annotations, KEY + name) ?? '';
  const image = said('container-image');
  if (image === '') return undefined;
  const command = said('command');
  const name = said('container-name');
  return [
    {
      name: name === '' ? `velero-restore-init-${suffixOf(metadata, restore)}` : name,
      image,
      // Velero crashes without a command. The image has one.
      ...(command !== '' && { command: commandOf(command) }),
    },
  ];
}

/** Eight letters, as in Velero. A retry of the restore gives the same ones. */
const suffixOf = ({ namespace = '', name }: Pod['metadata'], { metadata }: Restore): string =>
  createHash('sha256').update(`${metadata.uid}/${namespace}/${name}`).digest('hex').slice(0, 8);

function fromSpec({ metadata: { namespace = '', labels } }: Pod, restore: Restore): Fields[] {
  const groups = hookGroups(restore.spec.hooks);
  return groupsFor(groups, targetNamespace(namespace, restore), labels).flatMap(({ hooks }) =>
    hooks.flatMap(({ init }) => (init?.initContainers ?? []).map(checked)),
  );
}

function checked(container: unknown): Fields {
  const { name, image, command } = (isFields(container) ? container : {}) as Partial<Container>;
  if (isFields(container) && name && image && Array.isArray(command) && command.length > 0) {
    return container;
  }
  throw new CodedError(
    'BAD_HOOK',
    "invalid InitContainer in restore hook, it doesn't have Command, Name or Image field",
  );
}
