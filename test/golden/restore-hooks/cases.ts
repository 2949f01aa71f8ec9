/** A pod, and the hooks of a Restore. */
export interface HookCase {
  readonly ask: 'init-hooks' | 'exec-hooks';
  readonly about: string;
  readonly document: {
    readonly metadata: { readonly annotations?: Readonly<Record<string, string>> };
  };
  readonly hooks?: object;
}

const pod = (annotations?: Record<string, string>, initContainers?: object[]) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'p', namespace: 'app', labels: { app: 'web' }, ...(annotations && { annotations }) },
  spec: {
    containers: [{ name: 'web', image: 'w' }, { name: 'side', image: 's' }],
    ...(initContainers && { initContainers }),
  },
});
const INIT = 'init.hook.restore.velero.io/';
const POST = 'post.hook.restore.velero.io/';
const keyed = (prefix: string, said: Record<string, string>): Record<string, string> =>
  Object.fromEntries(Object.entries(said).map(([key, value]) => [prefix + key, value]));
const container = (name: string) => ({ name, image: `${name}:1`, command: ['/bin/true'] });
const init = (...names: string[]) => ({ init: { initContainers: names.map(container) } });
const spec = (...resources: object[]) => ({ resources });
const onInit = (about: string, document: ReturnType<typeof pod>, hooks?: object): HookCase => ({
  ask: 'init-hooks',
  about,
  document,
  ...(hooks && { hooks }),
});
const WAIT = { name: 'restore-wait', image: 'r' };
const OWN = { name: 'own', image: 'o' };

const exec = (rest: object) => ({ exec: { command: ['/bin/true'], ...rest } });
const onExec = (about: string, annotations?: Record<string, string>, hooks?: object): HookCase => ({
  ask: 'exec-hooks',
  about,
  document: pod(annotations && keyed(POST, annotations)),
  ...(hooks && { hooks }),
});

export const CASES: readonly HookCase[] = [
  onInit('none', pod()),
  onInit('none, and own containers', pod(undefined, [WAIT, OWN])),
  onInit('annotations', pod(keyed(INIT, { 'container-image': 'i', 'container-name': 'n', command: '["/bin/a","b c"]' }), [OWN])),
  onInit('annotations behind the wait', pod(keyed(INIT, { 'container-image': 'i', 'container-name': 'n', command: '/bin/a b' }), [WAIT, OWN])),
  onInit('a bracket that is no list', pod(keyed(INIT, { 'container-image': 'i', 'container-name': 'n', command: '[/bin/a' }))),
  onInit('a name but no image', pod(keyed(INIT, { 'container-name': 'n', command: '/bin/a' })), spec({ name: 'h', postHooks: [init('one')] })),
  onInit('annotations replace the spec', pod(keyed(INIT, { 'container-image': 'i', 'container-name': 'n', command: 'x' })), spec({ name: 'h', postHooks: [init('one')] })),
  onInit('several of the spec, in order', pod(undefined, [WAIT, OWN]), spec({ name: 'h', postHooks: [init('one', 'two'), exec({}), init('three')] }, { name: 'g', postHooks: [init('four')] })),
  onInit('of another namespace', pod(), spec({ name: 'h', includedNamespaces: ['other'], postHooks: [init('one')] })),
  onInit('of an excluded namespace', pod(), spec({ name: 'h', excludedNamespaces: ['app'], postHooks: [init('one')] })),
  onInit('by label', pod(), spec({ name: 'h', labelSelector: { matchLabels: { app: 'web' } }, postHooks: [init('one')] }, { name: 'g', labelSelector: { matchLabels: { app: 'db' } }, postHooks: [init('two')] })),
  onInit('without a command', pod(), spec({ name: 'h', postHooks: [{ init: { initContainers: [{ name: 'n', image: 'i' }] } }] })),
  onInit('the wait is not first', pod(undefined, [OWN, WAIT]), spec({ name: 'h', postHooks: [init('one')] })),

  onExec('none'),
  onExec('annotations', { command: '/bin/a' }),
  onExec('all annotations', { command: '["/bin/a","b"]', container: 'side', 'on-error': 'Fail', 'exec-timeout': '1m30s', 'wait-timeout': '5m', 'wait-for-ready': 'true' }),
  onExec('annotations that cannot be read', { command: '/bin/a', 'on-error': 'fail', 'exec-timeout': '30', 'wait-timeout': 'soon', 'wait-for-ready': 'yes' }),
  onExec('a container that is not there', { command: '/bin/a', container: 'gone' }),
  onExec('ready as T', { command: '/bin/a', 'wait-for-ready': 'T' }),
  onExec('annotations replace the spec', { command: '/bin/a' }, spec({ name: 'h', postHooks: [exec({})] })),
  onExec('an annotation without a command', { container: 'side' }, spec({ name: 'h', postHooks: [exec({})] })),
  onExec('the spec', undefined, spec({ name: 'h', postHooks: [exec({}), init('x'), exec({ container: 'side', onError: 'Fail', execTimeout: '10s', waitTimeout: '1m0s', waitForReady: true })] }, { name: 'g', postHooks: [exec({ onError: 'Continue' })] })),
  onExec('of other namespaces and labels', undefined, spec({ name: 'h', includedNamespaces: ['other'], postHooks: [exec({})] }, { name: 'i', labelSelector: { matchExpressions: [{ key: 'app', operator: 'NotIn', values: ['web'] }] }, postHooks: [exec({})] }, { name: 'j', includedNamespaces: ['a*'], postHooks: [exec({})] })),
];
