import { describe, expect, it } from 'vitest';
import { restoreTargetOf } from '../../src/exposer/index.ts';
import type { Pod } from '../../src/kube/index.ts';
import { aPod, aPodVolumeRestore } from '../support/builders.ts';

const restore = aPodVolumeRestore({
  spec: { pod: { namespace: 'app', name: 'web-0', uid: 'pod-1' }, volume: 'data' },
});
const running = { state: { running: {} } };
const waiting = { name: 'restore-wait', ...running };
const pod = (
  status: object,
  { metadata = {}, spec = {} }: { metadata?: object; spec?: object } = {},
): Pod =>
  aPod({
    metadata: { name: 'web-0', namespace: 'app', uid: 'pod-1', ...metadata },
    spec: {
      nodeName: 'me',
      containers: [],
      initContainers: [{ name: 'first' }, { name: 'restore-wait' }],
      ...spec,
    },
    status: { phase: 'Pending', ...status },
  });
const initContainerStatuses = [{ name: 'first', state: {} }, waiting];

describe('whether a restore into a volume of a pod may begin', () => {
  it.for([
    ['ready', 'restore-wait runs, wherever it stands', pod({ initContainerStatuses })],
    ['waiting', 'it has no node', pod({}, { spec: { nodeName: undefined } })],
    [
      'waiting',
      'another init container runs first',
      pod({ initContainerStatuses: [{ name: 'first', ...running }] }),
    ],
    [
      'waiting',
      'restore-wait crashed and is started again',
      pod({
        initContainerStatuses: [{ name: 'restore-wait', state: { terminated: { exitCode: 1 } } }],
      }),
    ],
    [
      'elsewhere',
      'it is on another node',
      pod({ initContainerStatuses }, { spec: { nodeName: 'other' } }),
    ],
    ['over', 'it is gone', undefined],
    ['over', 'it was replaced', pod({ initContainerStatuses }, { metadata: { uid: 'pod-2' } })],
    [
      'over',
      'it is being deleted',
      pod({ initContainerStatuses }, { metadata: { deletionTimestamp: 'now' } }),
    ],
    ['over', 'it runs already', pod({ phase: 'Running' })],
    ['over', 'nothing in it waits', pod({}, { spec: { initContainers: [] } })],
    [
      'over',
      'restore-wait has ended well',
      pod({
        initContainerStatuses: [{ name: 'restore-wait', state: { terminated: { exitCode: 0 } } }],
      }),
    ],
  ] as const)('%s when %s', ([is, , seen]) => {
    expect(restoreTargetOf(restore, seen, 'me')).toMatchObject({ is });
  });

  it('says what the matter is with the pod', () => {
    expect(restoreTargetOf(restore, undefined, 'me')).toEqual({
      is: 'over',
      message: 'pod app/web-0 does not exist any more, so nothing waits for its data',
    });
  });
});
