import { describe, expect, it } from 'vitest';
import { whyUnserved } from '../../../src/agent/index.ts';
import { CodedError } from '../../../src/base/index.ts';
import type { DataDownload, KubeClient, Resource } from '../../../src/kube/index.ts';

/** Why nobody takes up a DataUpload or DataDownload. */

interface Agents {
  readonly name?: string;
  readonly args?: readonly string[];
  readonly isOwn?: boolean;
  /** Phases of their pods. */
  readonly pods?: readonly string[];
  readonly wanted?: number;
}

/** A pod that says it is an agent's, and whose DaemonSet does not show how it is started. */
const STRANGE = {
  metadata: {
    name: 'agent',
    labels: { role: 'node-agent' },
    ownerReferences: [{ kind: 'DaemonSet', name: 'wrapped' }],
  },
  spec: { nodeName: 'n', containers: [] },
  status: { phase: 'Running' },
};

function clusterOf(
  agents: readonly Agents[],
  { mayList = true, others = [] }: { mayList?: boolean; others?: readonly object[] } = {},
): KubeClient {
  const named = agents.map((each) => ({ name: 'node-agent', ...each }));
  const daemonSets = named.map(({ name, args = [], isOwn = false, wanted = 2 }) => ({
    metadata: { name },
    spec: {
      template: {
        spec: {
          containers: [
            {
              args: ['node-agent', 'server', ...args],
              env: [{ name: isOwn ? 'LONGSHORE_DAEMONSET' : 'VELERO_SCRATCH_DIR', value: name }],
            },
          ],
        },
      },
    },
    status: { observedGeneration: 1, desiredNumberScheduled: wanted },
  }));
  const pods = named.flatMap(({ name, pods: phases = ['Running'] }) =>
    phases.map((phase) => ({
      metadata: { name, ownerReferences: [{ kind: 'DaemonSet', name }] },
      spec: { nodeName: 'n', containers: [] },
      status: { phase },
    })),
  );
  return {
    list: ({ plural }: Resource<never>) => {
      if (plural === 'pods') return Promise.resolve([...pods, ...others]);
      if (mayList) return Promise.resolve(daemonSets);
      return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'));
    },
    find: (_resource: unknown, { name }: { name: string }) =>
      Promise.resolve(daemonSets.find(({ metadata }) => metadata.name === name)),
  } as unknown as KubeClient;
}

const downloadOf = (datamover?: string, dataMoverConfig?: object): DataDownload =>
  ({
    metadata: { name: 'd' },
    spec: { targetVolume: {}, ...(datamover !== undefined && { datamover }), dataMoverConfig },
  }) as unknown as DataDownload;
const INTO_THERE = downloadOf('longshore', { 'longshore.inPlace': 'true' });

const why = (agents: readonly Agents[], movement = downloadOf(), mayList = true) =>
  whyUnserved(clusterOf(agents, { mayList }), 'velero', movement);

describe('nobody takes it up', () => {
  it.each<[string, readonly Agents[], DataDownload, string, boolean]>([
    [
      ...(['where there is no agent', [], downloadOf()] as const),
      ...(['a node-agent: there is no node-agent DaemonSet in this namespace', true] as const),
    ],
    [
      'where none is running',
      ...([[{ pods: ['Pending'] }], downloadOf('velero')] as const),
      ...([
        'a node-agent: none of DaemonSet node-agent is running (0 of 2 are ready)',
        false,
      ] as const),
    ],
    [
      'where none has a node',
      ...([[{ pods: [], wanted: 0 }], downloadOf()] as const),
      ...(['a node-agent: DaemonSet node-agent has no node to run on', false] as const),
    ],
    [
      'where none serves its data mover',
      ...([[{}], downloadOf('longshore')] as const),
      'the data mover "longshore", which no agent here serves (node-agent serves velero)',
      true,
    ],
    [
      "where only ours run, and it was backed up by Velero's block mover",
      ...([[{ isOwn: true }], downloadOf('velero-block')] as const),
      'the data mover "velero-block", which no agent here serves (node-agent serves velero, longshore)',
      true,
    ],
    [
      "where only Velero's agents run, and it is to be restored in place",
      ...([[{}], INTO_THERE] as const),
      'a node-agent of Longshore: nobody else restores in place, and node-agent has not taken it up',
      true,
    ],
    [
      'where agents that may be ours do not run',
      ...([[{ pods: [] }], INTO_THERE] as const),
      'a node-agent of Longshore: nobody else restores in place, and node-agent has not taken it up',
      false,
    ],
    [
      "where ours do not run, and Velero's do",
      ...([[{}, { name: 'ours', isOwn: true, pods: ['Failed'] }], INTO_THERE] as const),
      ...(['a node-agent: none of DaemonSet ours is running (0 of 2 are ready)', false] as const),
    ],
  ])('%s', async (_, agents, movement, waitsFor, isLasting) => {
    expect(await why(agents, movement)).toEqual({ waitsFor, isLasting });
  });

  it('for now, where DaemonSets that nobody may list could serve it', async () => {
    expect(await why([], downloadOf(), false)).toMatchObject({ isLasting: false });
    expect(await why([{}], INTO_THERE, false)).toMatchObject({ isLasting: false });
  });

  it.each<[string, readonly Agents[], DataDownload]>([
    ['of no DaemonSet that is known', [], downloadOf()],
    ['beside others that do not', [{}], downloadOf('longshore')],
    ["beside Velero's, which do not", [{}], INTO_THERE],
  ])('for now, where agents that run may serve it: %s', async (_, agents, movement) => {
    const client = clusterOf(agents, { others: [STRANGE] });
    expect(await whyUnserved(client, 'velero', movement)).toMatchObject({ isLasting: false });
  });
});

it.each<[string, readonly Agents[], DataDownload]>([
  ['an agent that serves it', [{}], downloadOf()],
  ["Velero's for its block mover", [{}], downloadOf('velero-block')],
  ['one of ours', [{ isOwn: true }], INTO_THERE],
  ['one of ours beside Velero', [{}, { name: 'x', args: ['--data-movers=longshore'] }], INTO_THERE],
  ['somebody who is not known', [], downloadOf('acme')],
])('%s may take it up', async (_, agents, movement) => {
  expect(await why(agents, movement)).toBeUndefined();
});
