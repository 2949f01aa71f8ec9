/** Rules, and the object that they are asked about. */
export interface ModifierCase {
  readonly about: string;
  readonly config: string;
  readonly document: object;
  readonly groupResource: string;
}

const DEPLOYMENT = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'web-1', namespace: 'app', labels: { tier: 'front', app: 'web' } },
  spec: {
    replicas: 3,
    paused: false,
    template: { spec: { containers: [{ name: 'web', image: 'web:1' }, { name: 'log', image: 'l' }] } },
  },
};
const CLASS = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'StorageClass',
  metadata: { name: 'fast' },
  provisioner: 'a',
};
const THING = { apiVersion: 'example.com/v1', kind: 'Thing', metadata: { name: 't', namespace: 'app' }, spec: {} };

const indented = (text: string, by: number): string =>
  text.split('\n').map((line) => ' '.repeat(by) + line).join('\n');
const rule = (conditions: string, patches: string): string =>
  `- conditions:\n${indented(conditions, 4)}\n${indented(patches, 2)}`;
const config = (...rules: string[]): string =>
  `version: v1\nresourceModifierRules:\n${rules.join('\n')}\n`;
const DEPLOYMENTS = 'groupResource: deployments.apps';
const REPLICAS = `patches:\n- operation: replace\n  path: /spec/replicas\n  value: "5"`;
const on = (about: string, text: string, document: object = DEPLOYMENT, groupResource = 'deployments.apps'): ModifierCase => ({
  about,
  config: text,
  document,
  groupResource,
});
const when = (conditions: string): ModifierCase =>
  on(conditions, config(rule(conditions, REPLICAS)));
/** As it stands in the YAML. */
const added = (value: string): ModifierCase =>
  on(
    `the value ${value}`,
    config(rule(DEPLOYMENTS, `patches:\n- operation: add\n  path: /spec/new\n  value: ${value}`)),
  );
const matching = (path: string, value: string): ModifierCase =>
  when(`${DEPLOYMENTS}\nmatches:\n- path: ${path}\n  value: ${value}`);
const patch = (
  about: string,
  patches: string,
  document: object = DEPLOYMENT,
  groupResource = 'deployments.apps',
): ModifierCase =>
  on(
    about,
    config(rule(`groupResource: "{*,*.*,*.*.*.*}"`, patches)),
    document,
    groupResource,
  );

export const CASES: readonly ModifierCase[] = [
  when(DEPLOYMENTS),
  when('groupResource: "*"'),
  when('groupResource: "*.apps"'),
  when('groupResource: "deploy*.*"'),
  when('groupResource: "**"'),
  when('groupResource: "d?ployments.apps"'),
  when('groupResource: "deployments?apps"'),
  when('groupResource: "{pods,deployments.apps}"'),
  when('groupResource: "[cd]eployments.apps"'),
  when('groupResource: deployments'),
  when(`${DEPLOYMENTS}\nresourceNameRegex: "^web-[0-9]+$"`),
  when(`${DEPLOYMENTS}\nresourceNameRegex: "eb"`),
  when(`${DEPLOYMENTS}\nresourceNameRegex: "(?i)WEB"`),
  when(`${DEPLOYMENTS}\nresourceNameRegex: "\\\\pL+-\\\\d"`),
  when(`${DEPLOYMENTS}\nresourceNameRegex: "^db"`),
  when(`${DEPLOYMENTS}\nnamespaces: [app]`),
  when(`${DEPLOYMENTS}\nnamespaces: [other]`),
  when(`${DEPLOYMENTS}\nnamespaces: ["a*"]`),
  when(`${DEPLOYMENTS}\nnamespaces: ["*"]`),
  when(`${DEPLOYMENTS}\nnamespaces: []`),
  when(`${DEPLOYMENTS}\nlabelSelector:\n  matchLabels:\n    tier: front`),
  when(`${DEPLOYMENTS}\nlabelSelector:\n  matchLabels:\n    tier: back`),
  when(`${DEPLOYMENTS}\nlabelSelector:\n  matchExpressions:\n  - {key: app, operator: In, values: [web, db]}`),
  when(`${DEPLOYMENTS}\nlabelSelector: {}`),
  when(`${DEPLOYMENTS}\nlabelSelector:\n  matchLabels:\n    tier: yes`),
  on('namespaces say nothing about what has none', config(rule('groupResource: storageclasses.storage.k8s.io\nnamespaces: [other]', `patches:\n- operation: replace\n  path: /provisioner\n  value: b`)), CLASS, 'storageclasses.storage.k8s.io'),
  matching('/spec/replicas', '"3"'),
  matching('/spec/replicas', '3'),
  matching('/spec/replicas', '"4"'),
  matching('/spec/replicas', `'"3"'`),
  matching('/spec/paused', '"false"'),
  matching('/spec/gone', '"x"'),
  matching('/spec/gone', '"null"'),
  matching('/gone/child', '"x"'),
  matching('/metadata/name', 'web-1'),
  matching('/metadata/labels', `'{"app":"web","tier":"front"}'`),
  matching('/spec/template/spec/containers/0/image', '"web:1"'),
  matching('/spec/template/spec/containers/7/image', '"web:1"'),
  matching('/spec/template/spec/containers/7', '"web:1"'),
  matching('/spec/gone', '""'),
  ...['text', '"5"', '5', "'\"5\"'", 'true', '"True"', `'"true"'`, '"null"', 'null', '""', `'{"a": 1}'`, `'[1, "b"]'`, '"1.50"', '1.50', '"1e3"', '1e3', '0x10', '"0x10"', 'yes', '"yes"', 'on', '0.1', '1234567890123456789', '"1234567890123456789"', '2026-11-26', '1_000', '010', `'a\\nb'`, `'say \\"hi\\"'`, '"-5"', '"1e400"', '.5', '~', '!!str 5'].map(added),
  patch('several steps', `patches:\n- operation: replace\n  path: /spec/replicas\n  value: "5"\n- operation: remove\n  path: /spec/paused\n- operation: copy\n  from: /metadata/name\n  path: /spec/name\n- operation: move\n  from: /metadata/labels/tier\n  path: /metadata/labels/was`),
  patch('a test that fails', `patches:\n- operation: remove\n  path: /spec/paused\n- operation: test\n  path: /spec/replicas\n  value: "4"`),
  patch('a step that fails', `patches:\n- operation: remove\n  path: /spec/paused\n- operation: remove\n  path: /spec/gone`),
  patch('a test of what is not there', `patches:\n- operation: test\n  path: /gone/child\n  value: x`),
  patch('without the kind', `patches:\n- operation: remove\n  path: /kind`),
  patch('a merge patch', `mergePatches:\n- patchData: |\n    spec:\n      replicas: 7\n      paused: null\n- patchData: |\n    {"metadata": {"labels": {"tier": null, "more": "yes"}}}`),
  patch('a merge patch of a list', `mergePatches:\n- patchData: '{"spec":{"template":{"spec":{"containers":[{"name":"only","x":null}]}}}}'`),
  patch('a merge patch of a custom object', `mergePatches:\n- patchData: 'spec: {a: on, b: 1.5, c: 12345678901234567, d: 2026-11-26}'`, THING, 'things.example.com'),
  patch('a strategic patch', `strategicPatches:\n- patchData: |\n    spec:\n      template:\n        spec:\n          containers:\n          - name: web\n            image: web:2\n- patchData: |\n    {"spec": {"template": {"spec": {"containers": [{"name": "log", "$patch": "delete"}]}}}}`),
  patch('a strategic patch without a merge key', `strategicPatches:\n- patchData: '{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}'`),
  patch('a strategic patch of a custom object', `strategicPatches:\n- patchData: '{"spec":{}}'`, THING, 'things.example.com'),
  on('conditions of all rules are about the first state', config(
    rule(DEPLOYMENTS, `patches:\n- operation: replace\n  path: /spec/replicas\n  value: "4"`),
    rule(`${DEPLOYMENTS}\nmatches:\n- path: /spec/replicas\n  value: "3"`, `mergePatches:\n- patchData: '{"spec":{"second":true}}'`),
    rule(`${DEPLOYMENTS}\nmatches:\n- path: /spec/replicas\n  value: "4"`, `mergePatches:\n- patchData: '{"spec":{"third":true}}'`),
  )),
  on('a rule that fails stops no other', config(
    rule(DEPLOYMENTS, `patches:\n- operation: remove\n  path: /spec/gone`),
    rule(DEPLOYMENTS, REPLICAS),
    rule(DEPLOYMENTS, `patches:\n- operation: remove\n  path: /spec/gone/too`),
  )),
  on('version V1', config(rule(DEPLOYMENTS, REPLICAS)).replace('v1', 'V1')),
];
