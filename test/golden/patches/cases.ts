import { parseJsonExact } from '../../../src/base/index.ts';

/** A document and what is to be done with it. */
export interface PatchCase {
  readonly ask: 'json' | 'merge' | 'strategic';
  readonly document: unknown;
  readonly patch: unknown;
}

/** Also what RFC 6901 and 6902 say is special. */
const DOCUMENT = {
  a: { b: [1, 2, { c: 'three' }], 'x/y': 1, 'm~n': 2, null: null },
  text: 'ü "quoted" <&>',
  float: 1.5,
  list: ['a', 'b', 'c'],
};
const json = (...patch: object[]): PatchCase => ({ ask: 'json', document: DOCUMENT, patch });
const op = (op: string, path: string, rest: object = {}): object => ({ op, path, ...rest });

const JSON_CASES: PatchCase[] = [
  json(op('add', '/new', { value: { deep: [1] } })),
  json(op('add', '/a/b/1', { value: 'between' })),
  json(op('add', '/a/b/-', { value: 'last' })),
  json(op('add', '/a/b/3', { value: 'last' })),
  json(op('add', '/a/b/4', { value: 'beyond' })),
  json(op('add', '/a/b/-1', { value: 'negative' })),
  json(op('add', '/a/b/-5', { value: 'negative' })),
  json(op('add', '/a/b/x', { value: 'no index' })),
  json(op('add', '/a/x~1y', { value: 'slash' }), op('add', '/a/m~0n', { value: 'tilde' })),
  json(op('add', '/a/m~01', { value: 'tilde and one' })),
  json(op('add', '/gone/child', { value: 1 })),
  json(op('add', '/text/child', { value: 1 })),
  json(op('add', '/a/null/child', { value: 1 })),
  json(op('add', '', { value: { all: 'new' } })),
  json(op('add', '/a', { value: null })),
  json(op('remove', '/a/b/0')),
  json(op('remove', '/a/b/-1')),
  json(op('remove', '/a/b/7')),
  json(op('remove', '/a/b/-7')),
  json(op('remove', '/a/b/-')),
  json(op('remove', '/gone')),
  json(op('remove', '/gone/child')),
  json(op('remove', '/a/null')),
  json(op('replace', '/a/b/2/c', { value: 3 })),
  json(op('replace', '/a/b/-1', { value: 3 })),
  json(op('replace', '/a/b/-', { value: 3 })),
  json(op('replace', '/a/b/9', { value: 3 })),
  json(op('replace', '/gone', { value: 3 })),
  json(op('replace', '/gone/child', { value: 3 })),
  json(op('replace', '/a/null', { value: 3 })),
  json(op('replace', '', { value: { all: 'new' } })),
  json(op('test', '/a/b/2/c', { value: 'three' })),
  json(op('test', '/a/b/2/c', { value: 'four' })),
  json(op('test', '/a/b', { value: [1, 2, { c: 'three' }] })),
  json(op('test', '/a/b/0', { value: '1' })),
  json(op('test', '/gone', { value: null })),
  json(op('test', '/gone', { value: 'x' })),
  json(op('test', '/gone/child', { value: null })),
  json(op('test', '/a/null', { value: null })),
  json(op('test', '/a/null', { value: 'x' })),
  json(op('test', '/text', { value: null })),
  json(op('test', '/a/b/9', { value: 1 })),
  json(op('test', '/a/b/x', { value: 1 })),
  json(op('test', '/text', { value: 'ü "quoted" <&>' })),
  json(op('move', '/a/b/0', { from: '/list/2' })),
  json(op('move', '/moved', { from: '/a' })),
  json(op('move', '/moved', { from: '' })),
  json(op('move', '/moved', { from: '/gone' })),
  json(op('move', '/moved', { from: '/gone/child' })),
  json(op('move', '/moved', { from: '/a/b/9' })),
  json(op('move', '/gone/child', { from: '/text' })),
  json(op('move', '/a/inside', { from: '/a' })),
  json(op('copy', '/copied', { from: '/a' }), op('replace', '/copied/b/0', { value: 9 })),
  json(op('copy', '/copied', { from: '/gone' })),
  json(op('copy', '/copied', { from: '/gone/child' })),
  json(op('copy', '/gone/child', { from: '/text' })),
  json(op('copy', '/list/x', { from: '/text' })),
  json(op('test', '/text', { value: 'other' }), op('remove', '/text')),
  json(op('remove', '/text'), op('add', '/text', { value: 1 }), op('test', '/text', { value: 1 })),
  {
    ask: 'json',
    document: parseJsonExact('{"long":12345678901234567890,"min":-9223372036854775808}'),
    patch: [op('copy', '/same', { from: '/long' }), op('move', '/least', { from: '/min' })],
  },
  {
    ask: 'json',
    document: parseJsonExact('{"long":12345678901234567890}'),
    patch: [op('test', '/long', { value: parseJsonExact('[12345678901234567891]') })],
  },
];

const merge = (document: unknown, patch: unknown): PatchCase => ({ ask: 'merge', document, patch });
/** Those of RFC 7386 come first. */
const MERGE_CASES: PatchCase[] = [
  merge({ a: 'b' }, { a: 'c' }),
  merge({ a: 'b' }, { b: 'c' }),
  merge({ a: 'b' }, { a: null }),
  merge({ a: 'b', b: 'c' }, { a: null }),
  merge({ a: ['b'] }, { a: 'c' }),
  merge({ a: 'c' }, { a: ['b'] }),
  merge({ a: { b: 'c' } }, { a: { b: 'd', c: null } }),
  merge({ a: [{ b: 'c' }] }, { a: [1] }),
  merge({ a: 'foo' }, { b: { c: null, d: { e: null } } }),
  merge({ e: null }, { a: 1 }),
  merge([1, 2], { a: 'b', c: null }),
  merge({}, { a: { bb: { ccc: null } } }),
  merge({ a: 'foo' }, ['bar']),
  merge({ a: 'b' }, { a: [{ b: null, c: 1 }, null] }),
  merge({ a: { x: 1 } }, { a: [{ b: null, c: 1 }, null] }),
  merge({ a: ['old'] }, { a: [{ b: null, c: 1 }, null] }),
  merge({ a: null }, { a: { b: null, c: 1 } }),
  merge({ a: 1 }, 'text'),
  merge(parseJsonExact('{"long":12345678901234567890,"a":1}'), { a: 2 }),
];

const strategic = (document: object, patch: object): PatchCase => ({
  ask: 'strategic',
  document,
  patch,
});
const pod = (spec: object, metadata: object = {}): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'p', ...metadata },
  spec,
});
const WEB = { name: 'web', image: 'web:1', env: [{ name: 'A', value: '1' }], args: ['x', 'y'] };
const SIDE = { name: 'side', image: 'side:1' };
const THREE = { containers: [WEB, SIDE, { name: 'log', image: 'log:1' }] };
const onPod = (patch: object): PatchCase => strategic(pod(THREE), { spec: patch });
const deployment = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'd', labels: { a: '1', b: '2' }, finalizers: ['one', 'two', 'one'] },
  spec: {
    replicas: 3,
    strategy: { type: 'RollingUpdate', rollingUpdate: { maxSurge: 1 } },
    template: { spec: { containers: [WEB], tolerations: [{ key: 'a' }] } },
  },
};
const service = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 's' },
  spec: { ports: [{ port: 80, name: 'http' }, { port: 443, name: 'https' }], selector: { a: '1' } },
};

const STRATEGIC_CASES: PatchCase[] = [
  onPod({ containers: [{ name: 'web', image: 'web:2' }] }),
  onPod({ containers: [{ name: 'new', image: 'new:1' }] }),
  onPod({ containers: [{ name: 'new', image: 'new:1' }, { name: 'log', image: 'log:2' }] }),
  onPod({ containers: [{ name: 'log', image: 'log:2' }, { name: 'web', image: 'web:2' }] }),
  onPod({ containers: [{ name: 'web', env: [{ name: 'B', value: '2' }] }] }),
  onPod({ containers: [{ name: 'web', env: [{ name: 'A', value: null }] }] }),
  onPod({ containers: [{ name: 'web', args: ['z'] }] }),
  onPod({ containers: [{ name: 'web', env: null }] }),
  onPod({ containers: [{ name: 'side', $patch: 'delete' }] }),
  onPod({ containers: [{ name: 'gone', $patch: 'delete' }] }),
  onPod({ containers: [{ $patch: 'delete' }] }),
  onPod({ containers: [{ name: 'only', image: 'o' }, { $patch: 'replace' }] }),
  onPod({ containers: [{ name: 'web', $patch: 'merge' }] }),
  onPod({ containers: [{ name: 'web', $patch: 'other' }] }),
  onPod({ containers: [{ image: 'no name' }] }),
  onPod({ containers: ['text'] }),
  onPod({ containers: [] }),
  onPod({ containers: null }),
  onPod({ containers: 'text' }),
  onPod({ $setElementOrder: [] }),
  onPod({ '$setElementOrder/containers': [{ name: 'log' }, { name: 'web' }] }),
  onPod({
    '$setElementOrder/containers': [{ name: 'log' }, { name: 'new' }, { name: 'web' }],
    containers: [{ name: 'new', image: 'n' }],
  }),
  onPod({
    '$setElementOrder/containers': [{ name: 'log' }, { name: 'web' }],
    containers: [{ name: 'new', image: 'n' }],
  }),
  onPod({
    '$setElementOrder/containers': [{ name: 'web' }, { name: 'log' }],
    containers: [{ name: 'web', image: 'w' }, { name: 'side', $patch: 'delete' }],
  }),
  onPod({
    '$setElementOrder/volumes': [{ name: 'a' }, { name: 'b' }],
    volumes: [{ name: 'a' }, { name: 'b', $patch: 'delete' }],
  }),
  onPod({ '$setElementOrder/volumes': [{ name: 'a' }] }),
  onPod({ '$setElementOrder/containers': 'text' }),
  onPod({ $patch: 'replace', containers: [] }),
  onPod({ $patch: 'delete' }),
  onPod({ $patch: 'other' }),
  onPod({ affinity: { nodeAffinity: { $patch: 'delete' } } }),
  onPod({ nodeSelector: { a: null, b: 'c' } }),
  onPod({ volumes: [{ name: 'v', emptyDir: { medium: null } }, { name: 'w', $patch: 'delete' }] }),
  strategic(pod(THREE, { finalizers: ['a', 'b', 'c'] }), {
    metadata: { '$deleteFromPrimitiveList/finalizers': ['b', 'x'] },
  }),
  strategic(pod(THREE), { metadata: { '$deleteFromPrimitiveList/finalizers': ['b'] } }),
  strategic(pod(THREE, { finalizers: ['a', 'b'] }), {
    metadata: { '$deleteFromPrimitiveList/finalizers': ['a'], finalizers: ['c'] },
  }),
  strategic(pod(THREE, { finalizers: ['a', 'b'] }), { metadata: { $deleteFromPrimitiveList: ['a'] } }),
  strategic(pod(THREE, { finalizers: ['a', 'b'] }), {
    metadata: { finalizers: ['b', 'c'], '$setElementOrder/finalizers': ['c', 'b', 'a'] },
  }),
  strategic(pod(THREE, { finalizers: ['a', 'b', 'x'] }), {
    metadata: { finalizers: ['c', 'b'], '$setElementOrder/finalizers': ['c', 'b', 'a'] },
  }),
  strategic(pod(THREE, { finalizers: ['a', 'b', 'c'] }), { metadata: { finalizers: ['c', 'a'] } }),
  strategic(deployment, { metadata: { finalizers: ['three', 'one'] } }),
  strategic(deployment, { metadata: { labels: { b: null, c: '3' } } }),
  strategic(deployment, { metadata: null }),
  strategic(deployment, { spec: { strategy: { $retainKeys: ['type'], type: 'Recreate' } } }),
  strategic(deployment, { spec: { strategy: { $retainKeys: ['rollingUpdate'], type: 'Recreate' } } }),
  strategic(deployment, { spec: { strategy: { $retainKeys: 'type', type: 'Recreate' } } }),
  strategic(deployment, {
    spec: { strategy: { $retainKeys: ['type'], type: 'Recreate', rollingUpdate: null } },
  }),
  strategic(deployment, { spec: { replicas: '4' } }),
  strategic(deployment, { spec: { replicas: null, paused: null } }),
  strategic(deployment, { spec: { template: { spec: { tolerations: [{ key: 'b' }] } } } }),
  strategic(deployment, {
    spec: { template: { spec: { containers: [{ name: 'web', ports: [{ containerPort: 80 }] }] } } },
  }),
  strategic(service, { spec: { ports: [{ port: 443, nodePort: 30443 }] } }),
  strategic(service, { spec: { ports: [{ port: 8080, name: 'more' }, { port: 80, $patch: 'delete' }] } }),
  strategic(service, { spec: { ports: [{ port: '80', name: 'text' }] } }),
  strategic(service, { spec: { selector: { $patch: 'replace', b: '2' } } }),
  strategic(
    {
      apiVersion: 'policy/v1',
      kind: 'PodDisruptionBudget',
      metadata: { name: 'b' },
      spec: { selector: { matchLabels: { a: '1' } } },
    },
    { spec: { selector: { matchLabels: { b: '2' } } } },
  ),
  strategic(
    {
      apiVersion: 'apps/v1',
      kind: 'StatefulSet',
      metadata: { name: 's' },
      spec: { volumeClaimTemplates: [{ metadata: { name: 'data' }, spec: {} }] },
    },
    { spec: { volumeClaimTemplates: [{ metadata: { name: 'other' } }] } },
  ),
  strategic(
    {
      apiVersion: 'v1',
      kind: 'ServiceAccount',
      metadata: { name: 'a' },
      secrets: [{ name: 'one' }],
      imagePullSecrets: [{ name: 'one' }],
    },
    { secrets: [{ name: 'two' }], imagePullSecrets: [{ name: 'two' }] },
  ),
  strategic({ apiVersion: 'example.com/v1', kind: 'Thing', metadata: { name: 't' } }, { spec: {} }),
];

export const CASES: readonly PatchCase[] = [...JSON_CASES, ...MERGE_CASES, ...STRATEGIC_CASES];
