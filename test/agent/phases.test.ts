import { describe, expect, it } from 'vitest';
import { type AcceptingFacts, decideAccepting } from '../../src/agent/phases/accepting.ts';
import type { Action } from '../../src/agent/phases/action.ts';
import { decideMoving, type MovingFacts } from '../../src/agent/phases/moving.ts';
import {
  type AcceptedFacts,
  decideAccepted,
  decidePrepared,
  type PreparedFacts,
} from '../../src/agent/phases/preparing.ts';
import { CodedError } from '../../src/base/index.ts';
import type { DataUpload, Pod } from '../../src/kube/index.ts';

const FINALIZERS = ['velero.io/data-upload-download-finalizer'];
const upload = (status: object = {}, spec: object = {}, metadata: object = {}): DataUpload =>
  ({
    metadata: { name: 'up', uid: 'u-1', resourceVersion: '7', finalizers: FINALIZERS, ...metadata },
    spec,
    status,
  }) as never;
const pod = (phase: string, message?: string, more: object = {}): Pod =>
  ({
    metadata: { name: 'up', uid: 'p-1' },
    spec: { nodeName: 'other' },
    status: {
      phase,
      ...(message !== undefined && {
        containerStatuses: [{ name: 'c', state: { terminated: { exitCode: 1, message } } }],
      }),
      ...more,
    },
  }) as never;
const crowded = pod('Failed', undefined, {
  reason: 'OutOfpods',
  message: 'Pod was rejected: full',
});
const noRoom =
  'node other has no room for the pod of the data mover: OutOfpods: Pod was rejected: full';
const running = pod('Running');
const died = pod('Failed');
const canceled = { cancel: true };
const named = { generation: 1, pod: 'p-1', lastPod: 'p-1', node: 'other', namedAt: '' };
const restarting = (pod: string): object => ({
  annotations: { 'longshore.io/data-mover-restarting': pod },
});
const forbidden = new CodedError('KUBE_FORBIDDEN', 'forbidden');
const unaccounted = new CodedError(
  'KUBE_FORBIDDEN',
  'pods "p" is forbidden: serviceaccount "no-such" not found',
);
const overQuota = new CodedError('KUBE_FORBIDDEN', 'pods "p" is forbidden: exceeded quota: q');
const passing = new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' });
const late = new CodedError('WAIT_TIMEOUT', 'not ready');
const broken = pod('Pending', undefined, {
  containerStatuses: [{ name: 'c', state: { waiting: { reason: 'ErrImageNeverPull' } } }],
});

/** An action with its important fields. */
const told = (action: Action): unknown => {
  if (action.do === 'wait') return action.ms === undefined ? 'wait' : `wait ${action.ms}`;
  if (action.do === 'read') return `read ${action.what}`;
  if (action.do === 'fail' || action.do === 'failDiagnosed') {
    return `${action.do}: ${action.message}`;
  }
  if (action.do === 'noteRefusal') return `noteRefusal: ${action.reason}`;
  if (action.do === 'countDeath') return `countDeath: ${action.reason}`;
  if (action.do === 'waitForWriter') return `waitForWriter ${action.ms}`;
  if (action.do === 'complete') return `complete ${JSON.stringify(action.result)}`;
  return action.do;
};
type Row<F> = [does: string, when: string, facts: Partial<F>];

describe('New', () => {
  const fresh = upload({}, {}, { finalizers: [] });
  const facts: AcceptingFacts = {
    movement: upload(),
    turnInMs: 0,
    problem: undefined,
    hasPlace: true,
    looksFirst: false,
    isQueueFull: false,
    elsewhere: undefined,
    target: 'there',
    targetInMs: 0,
  };
  const rows: Row<AcceptingFacts>[] = [
    ['wait 700', "it is another agent's turn", { turnInMs: 700 }],
    ['claim', 'all is there, without a finalizer too', { movement: fresh }],
    [
      'read target',
      'it has no finalizer, and may be claimed',
      { movement: fresh, target: 'unread' },
    ],
    ['addFinalizer', 'it is canceled', { movement: upload({}, canceled, { finalizers: [] }) }],
    ['addFinalizer', 'its spec is no good', { movement: fresh, problem: 'no good' }],
    ['addFinalizer', 'it has none, and there is no place', { movement: fresh, hasPlace: false }],
    ['addFinalizer', 'it has none, and the queue is full', { movement: fresh, isQueueFull: true }],
    [
      'addFinalizer',
      'it has none, and its PVC is not there',
      { movement: fresh, target: 'missing', targetInMs: 9 },
    ],
    ['cancel', 'it is canceled before anything began', { movement: upload({}, canceled) }],
    ['fail: no good', 'its spec is no good', { problem: 'no good' }],
    ['park', 'the queue is full', { isQueueFull: true, target: 'unread' }],
    ['park', 'this agent has no place', { hasPlace: false, target: 'unread' }],
    [
      'read target',
      'it has no place, and the target tells whether it needs one here',
      { hasPlace: false, looksFirst: true, target: 'unread' },
    ],
    [
      'wait 700',
      'it has no place, and its target is not there',
      { hasPlace: false, looksFirst: true, target: 'missing', targetInMs: 700 },
    ],
    ['park', 'it has no place, and its target is there', { hasPlace: false, looksFirst: true }],
    ['read target', 'nobody looked for its PVC', { target: 'unread' }],
    ['wait 900', 'its PVC is not there yet', { target: 'missing', targetInMs: 900 }],
    ['wait 800', 'agents before it look for the PVC', { target: 'unread', targetInMs: 800 }],
    ['wait 700', 'the agent of its node lives', { elsewhere: { node: 'n', awayInMs: 700 } }],
    [
      'fail: node n has no node-agent that could read or write the volume: check that the DaemonSet runs there',
      'its node has no agent for long',
      { elsewhere: { node: 'n', awayInMs: 0 } },
    ],
    [
      'wait 900',
      'its pod is on another node',
      { target: { node: 'n', awayInMs: 700 }, targetInMs: 900 },
    ],
    ['fail: gone', 'nothing waits for it any more', { target: { never: 'gone' } }],
    ['read target', 'the PVC is to be looked for again', { target: 'missing' }],
    ['claim', 'all is there', {}],
  ];
  it.for(rows)('%s when %s', ([does, , some]) => {
    expect(told(decideAccepting({ ...facts, ...some }))).toBe(does);
  });
});

describe('Accepted', () => {
  const facts: AcceptedFacts = {
    movement: upload({ phase: 'Accepted', acceptedByNode: 'me' }),
    node: 'me',
    noun: 'data upload',
    local: undefined,
    pod: 'unread',
    isPodOurs: true,
    exposure: 'done',
    latest: 'unread',
    lost: undefined,
    sinceAcceptedMs: 10_000,
    podAgeMs: 2000,
    prepareTimeoutMs: 60_000,
    awayInMs: () => 1000,
    refusedMs: () => 299_000,
    noRoomMs: () => 20_000,
    failingMs: 59_000,
    heardMs: 60_000,
  };
  const others = upload({ phase: 'Accepted', acceptedByNode: 'other' });
  const wanted = upload({ phase: 'Accepted', acceptedByNode: 'me' }, canceled);
  const rows: Row<AcceptedFacts>[] = [
    ['setPrepared', 'its pod runs here, whoever accepted it', { movement: others, local: running }],
    ['watchOver', 'another agent accepted it', { movement: others }],
    ['abortExposure', 'it is canceled while exposed', { movement: wanted, exposure: 'running' }],
    ['cancel', 'it is canceled', { movement: wanted, local: running }],
    ['wait 5000', 'it is being exposed', { exposure: 'running' }],
    ['forgetExposure', 'that failed for now', { exposure: { error: passing } }],
    [
      'fail: away',
      'that has failed for as long as it may take',
      { exposure: { error: passing }, failingMs: 60_000 },
    ],
    [
      'forgetExposure',
      'that has failed for as long while the API server took no writes',
      { exposure: { error: passing }, failingMs: 60_000, heardMs: 59_000 },
    ],
    ['fail: not ready', 'its storage took too long', { exposure: { error: late } }],
    [
      'forgetExposure',
      'its storage took too long while the API server took no writes',
      { exposure: { error: late }, heardMs: 59_000 },
    ],
    [
      'fail: not ready',
      'its storage took too long for a day',
      { exposure: { error: late }, heardMs: 59_000, failingMs: 60_000 + 86_400_000 },
    ],
    ['fail: no class', 'that failed for good', { exposure: { error: new Error('no class') } }],
    ['read pod', 'nobody looked for its pod', {}],
    ['read latest', 'there is no pod', { pod: 'none' }],
    ['wait', 'it went on elsewhere', { pod: 'none', latest: upload({ phase: 'Prepared' }) }],
    ['wait', 'it is gone', { pod: 'none', latest: 'gone' }],
    ['expose', 'its pod is gone', { pod: 'none', latest: facts.movement }],
    [
      'expose',
      'an agent that died left it half made',
      { pod: running, exposure: undefined, latest: facts.movement },
    ],
    [
      'fail: timeout on preparing data upload: its pod was deleted',
      'its pod went again and again',
      { pod: 'none', latest: facts.movement, sinceAcceptedMs: 61_000 },
    ],
    [
      'fail: pod up was not made for this data upload',
      'the pod is of somebody else',
      { pod: running, isPodOurs: false },
    ],
    ['countDeath: its pod failed without a reason', 'its pod died', { pod: died }],
    [
      'fail: Pod is in abnormal state [Failed], message [no way]',
      'its mover gave up',
      { pod: pod('Failed', 'no way') },
    ],
    [
      'fail: Container c in Pod /up is in pull image failed with reason ErrImageNeverPull: ',
      'its image is not there',
      { pod: broken },
    ],
    ['wait 5000', "its pod runs on another agent's node", { pod: running }],
    ['setPrepared', 'that agent is away for long', { pod: running, awayInMs: () => 0 }],
    [
      'failDiagnosed: timeout on preparing data upload: ',
      'its pod waits for too long',
      { pod: pod('Pending'), podAgeMs: 60_000 },
    ],
    [
      'wait 30000',
      'its pod waited while the API server was away',
      { pod: pod('Pending'), podAgeMs: 3_600_000, heardMs: 59_000 },
    ],
    [
      'failDiagnosed: timeout on preparing data upload: ',
      'the API server is away again and again',
      { pod: pod('Pending'), podAgeMs: 90_000_000, heardMs: 59_000 },
    ],
    [
      'expose',
      'its pod went while the API server was away',
      { pod: 'none', latest: facts.movement, sinceAcceptedMs: 61_000, heardMs: 59_000 },
    ],
    ['wait 1000', 'its pod waits', { pod: pod('Pending'), podAgeMs: 59_000 }],
    ['forgetExposure', 'it may not be exposed just now', { exposure: { error: forbidden } }],
    [
      'forgetExposure',
      'it waited for long, and may not be exposed just now',
      { exposure: { error: forbidden }, sinceAcceptedMs: 1_200_000 },
    ],
    [
      'fail: pods "p" is forbidden: serviceaccount "no-such" not found',
      'its account is not there',
      { exposure: { error: unaccounted } },
    ],
    [
      'fail: forbidden',
      'it may not be exposed for long',
      { exposure: { error: forbidden }, refusedMs: () => 300_000 },
    ],
    ['wait 8000', 'its node had no room for its pod', { pod: crowded }],
    [`noteRefusal: ${noRoom}`, 'that was a while ago', { pod: crowded, podAgeMs: 10_000 }],
    [
      'replace',
      'that is noted',
      {
        pod: crowded,
        movement: upload({ phase: 'Accepted', acceptedByNode: 'me' }, {}, restarting('p-1')),
      },
    ],
    [
      `fail: timeout on preparing data upload: ${noRoom}`,
      'its node has had no room for long',
      { pod: crowded, noRoomMs: () => 60_000 },
    ],
    [
      'wait 58000',
      'its node has had no room for long, while the API server was away',
      { pod: crowded, noRoomMs: () => 3_600_000, heardMs: 59_000 },
    ],
    [
      'countDeath: its pod was terminated: OutOfcpu',
      'its node found after a restart that it has no room for a pod that ran',
      {
        pod: pod('Failed', undefined, {
          reason: 'OutOfcpu',
          containerStatuses: [{ name: 'c', state: { terminated: { exitCode: 137 } } }],
        }),
      },
    ],
    [
      'forgetExposure',
      'the quota of its namespace is full',
      { exposure: { error: overQuota }, refusedMs: () => 1_200_000 },
    ],
    [
      'fail: pods "p" is forbidden: exceeded quota: q',
      'that has been full for long',
      { exposure: { error: overQuota }, noRoomMs: () => 60_000 },
    ],
    ['read lost', 'nobody asked whether it can be moved', { pod: pod('Pending'), lost: 'unread' }],
    [
      'fail: pod a is gone',
      'it cannot be moved any more',
      { pod: pod('Pending'), lost: { reason: 'pod a is gone', isSure: false } },
    ],
    ['wait 10000', 'its pod has waited for a while', { pod: pod('Pending'), podAgeMs: 20_000 }],
  ];
  it.for(rows)('%s when %s', ([does, , some]) => {
    expect(told(decideAccepted({ ...facts, ...some }))).toBe(does);
  });
});

describe('Prepared', () => {
  const facts: PreparedFacts = {
    movement: upload({ phase: 'Prepared', node: 'me' }),
    node: 'me',
    pod: running,
    podAgeMs: 1000,
    lost: undefined,
    exposure: undefined,
    overdueMs: 0,
    prepareTimeoutMs: 60_000,
    refusedMs: () => 299_000,
    noRoomMs: () => 20_000,
    failingMs: 59_000,
    heardMs: 60_000,
  };
  const leaving = { ...running, metadata: { ...running.metadata, deletionTimestamp: 'soon' } };
  const wanted = upload({ phase: 'Prepared', node: 'me' }, canceled);
  const rows: Row<PreparedFacts>[] = [
    ['watchOver', 'it is of another node', { node: 'other' }],
    ['cancel', 'it is canceled', { movement: wanted }],
    ['abortExposure', 'and its pod is being made', { movement: wanted, exposure: 'running' }],
    ['read pod', 'nobody looked for its pod', { pod: 'unread' }],
    ['countDeath: its pod is gone', 'its pod is gone', { pod: 'none' }],
    ['countDeath: its pod failed without a reason', 'its pod died', { pod: died }],
    [
      'replace',
      'a death is counted that was not followed up',
      {
        pod: 'none',
        movement: upload({ phase: 'Prepared', node: 'me' }, {}, restarting('gone')),
      },
    ],
    ['wait 5000', 'its new pod is being made', { pod: 'none', exposure: 'running' }],
    ['restarted', 'its new pod is made', { pod: 'none', exposure: 'done' }],
    ['forgetExposure', 'that failed for now', { exposure: { error: passing } }],
    ['forgetExposure', 'that may not be done just now', { exposure: { error: forbidden } }],
    [
      'fail: the data mover died, and could not be started again: away',
      'that has failed for as long as it may take',
      { exposure: { error: passing }, failingMs: 60_000 },
    ],
    [
      'forgetExposure',
      'that has failed for as long while the API server took no writes',
      { exposure: { error: passing }, failingMs: 60_000, heardMs: 59_000 },
    ],
    [
      'fail: the data mover died, and could not be started again: forbidden',
      'that may not be done for minutes',
      { exposure: { error: forbidden }, refusedMs: () => 300_000 },
    ],
    [
      'fail: the data mover died, and could not be started again: no PVC',
      'that failed for good',
      { exposure: { error: new Error('no PVC') } },
    ],
    ['wait 9000', 'its node had no room for its new pod', { pod: crowded }],
    [`noteRefusal: ${noRoom}`, 'that was a while ago', { pod: crowded, podAgeMs: 10_000 }],
    [
      `fail: the data mover could not be started again: ${noRoom}`,
      'its node has had no room for long',
      { pod: crowded, noRoomMs: () => 60_000 },
    ],
    ['read lost', 'nobody asked whether it can be moved', { lost: 'unread' }],
    [
      'fail: pod a is gone',
      'it stands in line, and holds a volume of a pod that is gone',
      { lost: { reason: 'pod a is gone', isSure: false } },
    ],
    ['start', 'its pod runs', {}],
    ['wait 5000', 'its pod is being ended', { pod: leaving }],
    ['dropPod', 'its node does not end its pod', { pod: leaving, overdueMs: 60_001 }],
  ];
  it.for(rows)('%s when %s', ([does, , some]) => {
    expect(told(decidePrepared({ ...facts, ...some }))).toBe(does);
  });
});

describe('InProgress and Canceling', () => {
  const inProgress = upload({ phase: 'InProgress', node: 'me' });
  const wanted = upload({ phase: 'InProgress', node: 'me' }, canceled);
  const canceling = upload({ phase: 'Canceling', node: 'me' }, canceled);
  const facts: MovingFacts = {
    movement: inProgress,
    node: 'me',
    direction: {
      moves: 'backup',
      lacks: ({ snapshotID }) => (snapshotID ? undefined : 'it ended without naming a snapshot'),
    },
    local: undefined,
    pod: running,
    exposure: undefined,
    told: undefined,
    isCompleting: false,
    stalledMs: 0,
    stallTimeoutMs: 600_000,
    podAgeMs: 1000,
    prepareTimeoutMs: 60_000,
    cancelingMs: () => 1000,
    mover: named,
    writer: 'unread',
    lost: undefined,
    seenDone: false,
    fenceInMs: 3000,
    overdueMs: 0,
    refusedMs: () => 299_000,
    noRoomMs: () => 20_000,
    failingMs: 59_000,
    heardMs: 300_000,
  };
  const result = '{"snapshotID":"s-1"}';
  const download = { ...facts.direction, moves: 'restore' } as const;
  const counted = upload({ phase: 'InProgress', node: 'me' }, {}, restarting('gone'));
  const nobody = { ...named, pod: '' };
  const gone = { movement: counted, pod: 'none', direction: download, mover: nobody } as const;
  const leaving = { ...running, metadata: { ...running.metadata, deletionTimestamp: 'soon' } };
  const rows: Row<MovingFacts>[] = [
    ['watchOver', "it is another node's", { node: 'other' }],
    ['takeOver', 'and its pod came here', { node: 'other', local: running }],
    ['complete {}', 'only the last step is left', { isCompleting: true, pod: 'unread' }],
    ['wait 5000', 'its new pod is being made', { exposure: 'running', pod: 'none' }],
    ['restarted', 'its new pod is made', { exposure: 'done' }],
    ['abortExposure', 'and it is canceled', { exposure: 'running', movement: wanted }],
    ['read pod', 'nobody looked for its pod', { pod: 'unread' }],
    [`complete ${result}`, 'the mover is done', { pod: pod('Succeeded', result) }],
    [`complete ${result}`, 'it was killed at its very end', { pod: pod('Failed', result) }],
    [
      `complete ${result}`,
      'the mover says that it is done, and its pod not yet',
      { told: { snapshotID: 's-1' } },
    ],
    [
      `complete ${result}`,
      'the mover said that it was done, and its pod is gone',
      { told: { snapshotID: 's-1' }, pod: 'none' },
    ],
    [
      `complete ${result}`,
      'it is canceled after the mover was done',
      { told: { snapshotID: 's-1' }, movement: canceling },
    ],
    [
      `complete ${result}`,
      'the mover said that it was done, and was killed then',
      { told: { snapshotID: 's-1' }, pod: died },
    ],
    ['wait 5000', 'the mover says that it is done, and not what it made', { told: {} }],
    ['read told', 'it died, and what it said may not be known yet', { told: 'unread', pod: died }],
    [
      'read told',
      'its pod is gone, and what it said may not be known yet',
      { told: 'unread', pod: 'none' },
    ],
    ['wait 5000', 'it moves, and nothing is known to be said', { told: 'unread' }],
    [
      `complete ${result}`,
      'its pod tells the outcome, and nobody asked for Events',
      { told: 'unread', pod: pod('Succeeded', result) },
    ],
    [
      'countDeath: it ended without naming a snapshot',
      'nobody could find it',
      { pod: pod('Succeeded', '{}') },
    ],
    [
      'countDeath: it did not report its outcome',
      'it ended well without a word',
      { pod: pod('Succeeded') },
    ],
    [
      'countDeath: it did not report its outcome',
      'what it said was cut off',
      { pod: pod('Succeeded', '{"snapshotID":') },
    ],
    ['cancel', 'it is canceled and has ended', { movement: canceling, pod: pod('Failed', 'x') }],
    [
      'countDeath: it ended with exit code 1 and no message',
      'it was stopped, not by us',
      { pod: pod('Failed', 'data path is canceled') },
    ],
    ['countDeath: its pod failed without a reason', 'it died', { pod: died }],
    ['fail: data path backup failed: disk', 'it failed', { pod: pod('Failed', 'disk') }],
    [
      'complete {}',
      'it failed, and who waited has the data of an earlier one',
      { pod: pod('Failed', 'disk'), seenDone: true },
    ],
    ['setCanceling', 'it is canceled', { movement: wanted }],
    ['cancel', 'it is canceling without a pod', { movement: canceling, pod: 'none' }],
    ['wait 5000', 'it may leave a checkpoint', { movement: canceling }],
    ['killPod', 'it does not', { movement: canceling, cancelingMs: () => 30_000 }],
    ['countDeath: its pod is gone', 'its pod is gone', { pod: 'none' }],
    ['read seenDone', 'its pod is gone', { pod: 'none', mover: named, seenDone: 'unread' }],
    [
      'complete {}',
      'its pod is gone, and who waited has the data',
      { pod: 'none', mover: named, seenDone: true },
    ],
    ['read seenDone', 'it died', { pod: died, seenDone: 'unread' }],
    ['complete {}', 'it died after its last act', { pod: died, seenDone: true }],
    [
      'complete {}',
      'it died after its last act, and cannot be started again',
      { exposure: { error: new CodedError('EXPOSE_FAILED', 'no pod') }, seenDone: true },
    ],
    [
      'fail: the data mover died, and could not be started again: no pod',
      'it died, and what it was to be done to is gone',
      { exposure: { error: new CodedError('EXPOSE_FAILED', 'no pod') } },
    ],
    [
      'wait 5000',
      'its volume seems lost, and its mover may be done and about to say so',
      { pod: running, lost: { reason: 'pod a is gone', isSure: false } },
    ],
    [
      'fail: pod a is gone',
      'its volume is lost for sure',
      { pod: running, lost: { reason: 'pod a is gone', isSure: true } },
    ],
    [
      'fail: pod a is gone',
      'its volume is lost, and no mover is there that could be done',
      { pod: 'none', lost: { reason: 'pod a is gone', isSure: false } },
    ],
    [
      'complete {}',
      'its volume is gone, since who waited for it has ended',
      { pod: running, lost: { reason: 'pod a has ended', isSure: true }, seenDone: true },
    ],
    ['replace', 'a backup lost its pod', { ...gone, direction: facts.direction }],
    ['replace', 'the pod of one that was never named is gone', { ...gone, mover: undefined }],
    [
      'countDeath: its pod is gone',
      'its pod is gone, and the death that is counted is that of the one before',
      { ...gone, mover: { ...named, pod: 'p-2', lastPod: 'p-2' }, fenceInMs: -1 },
    ],
    ['read writer', 'nobody looked for the process of a restore', gone],
    ['replace', 'that process has ended', { ...gone, writer: 'ended' }],
    ['waitForWriter 3000', 'nobody knows of it', { ...gone, writer: 'unknown' }],
    ['replace', 'it has stopped by itself', { ...gone, writer: 'unknown', fenceInMs: 0 }],
    [
      'replace',
      'a death is counted that was not followed up',
      { pod: died, movement: upload({ phase: 'InProgress', node: 'me' }, {}, restarting('p-1')) },
    ],
    [
      `noteRefusal: ${noRoom}`,
      'its node had no room for its new pod',
      { pod: crowded, podAgeMs: 10_000, mover: nobody },
    ],
    [
      'countDeath: its pod was terminated: OutOfpods: Pod was rejected: full',
      'its node refused a pod that was to write already',
      { pod: crowded, podAgeMs: 10_000 },
    ],
    ['read seenDone', 'it was refused', { pod: crowded, mover: nobody, seenDone: 'unread' }],
    ['name', 'its new pod runs', { mover: { ...named, pod: '' } }],
    ['name', 'none was ever named', { mover: undefined }],
    [
      'countDeath: it ended with exit code 1 and no message',
      'one that is not named says that it is done',
      { pod: pod('Failed', result), mover: { ...named, pod: 'p-2' } },
    ],
    [
      'countDeath: gone; data mover is fenced off',
      'it was cut off',
      { pod: pod('Failed', 'gone; data mover is fenced off') },
    ],
    [
      "countDeath: the volume is not mounted: /x is the kubelet's own directory",
      'its volume was not mounted again after its node was started again',
      { pod: pod('Failed', "the volume is not mounted: /x is the kubelet's own directory") },
    ],
    ['wait 5000', 'its pod is being ended', { pod: leaving, overdueMs: 60_000, mover: undefined }],
    [
      'dropPod',
      'its node does not end it, and it never was named',
      {
        pod: { ...leaving, status: { phase: 'Pending' } },
        direction: download,
        overdueMs: 60_001,
        mover: { ...nobody, lastPod: 'p-0' },
      },
    ],
    ['waitForWriter 5000', 'its node does not end it', { pod: leaving, overdueMs: 60_001 }],
    ['dropPod', 'for long, of a backup', { pod: leaving, overdueMs: 360_001 }],
    [
      'waitForWriter 5000',
      'for long, of a restore',
      { pod: leaving, overdueMs: 360_001, direction: download },
    ],
    [
      'fail: node other is lost and its data mover may still be writing, so no other data mover was started',
      'for longer than anything may stall',
      { pod: leaving, overdueMs: 90_000, stalledMs: 600_001 },
    ],
    ['read lost', 'nobody asked whether its pod is there', { lost: 'unread' }],
    ['fail: pod gone', 'what it is of is gone', { lost: { reason: 'pod gone', isSure: true } }],
    [
      `complete ${result}`,
      'what it is of is gone, and its mover was done before',
      { lost: 'unread', pod: pod('Succeeded', result) },
    ],
    [
      'fail: no progress for 10 min: the data mover, the volume or the storage hangs',
      'nothing moves',
      { stalledMs: 600_001 },
    ],
    [
      'wait 5000',
      'nothing is told of moving, as the API server took no writes until now',
      { stalledMs: 600_001, heardMs: 299_000 },
    ],
    [
      'waitForWriter 5000',
      'nobody could say that its node is gone, as the API server took no writes until now',
      { pod: leaving, overdueMs: 90_000, stalledMs: 600_001, heardMs: 299_000 },
    ],
    [
      'fail: the data mover could not be started again: Container c in Pod /up is in pull image failed with reason ErrImageNeverPull: ',
      'its new pod has no image',
      { pod: broken },
    ],
    [
      'failDiagnosed: the data mover could not be started again: ',
      'its new pod waits for too long',
      { pod: pod('Pending'), podAgeMs: 60_000 },
    ],
    ['wait 5000', 'its new pod waits', { pod: pod('Pending') }],
    ['wait 5000', 'it moves', {}],
  ];
  it.for(rows)('%s when %s', ([does, , some]) => {
    expect(told(decideMoving({ ...facts, ...some }))).toBe(does);
  });
});
