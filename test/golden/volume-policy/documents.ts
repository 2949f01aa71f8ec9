import { dice } from './world.ts';

const SCALARS: readonly string[] = [
  'gp2', '"gp2"', "'gp2'", '1', '017', '0x1F', '1_000', '1.50', '1e6', '.inf', 'true', 'True', 'yes', 'null', '~', '',
  '""', '"*"', '2001-12-14', '2001-12-14T21:59:43.10-05:00', '0,10Gi', '"0,10Gi"', '"10Gi"', '"10Gi,1Gi"', '",,"', '"a,b"',
  '[]', '[gp2, gp3]', '[1, true, null]', '["", x]', '[[a]]', '{}', '{a: b}', '{driver: d}', '{driver: d, volumeAttributes: {a: 1}}',
  '{driver: 5}', '{volumeAttributes: {a: b}}', '{volumeAttributes: {}}', '{volumeAttributes: null}', '{server: s, path: /p}',
  '{server: s, other: x}', '{env: prod}', '{env: 1, a: true}', '{1: x}', '{env: null}', '{env: [a]}', '{env: {a: b}}', '{a: b, a: c}',
  '[Bound]', '[ReadWriteOnce, 1]', 'Block', '&x gp2', '*x', '!!str 5', '!!int "5"', '|\n      text', '"1k,2E"', '"1e3,1e1000"', '"-1,+5."', '".5,1"', '"5,.e"',
];
const KEYS: readonly string[] = [
  'capacity', 'storageClass', 'nfs', 'csi', 'volumeTypes', 'pvcLabels', 'pvcPhase', 'pvcVolumeMode', 'pvcAccessModes',
  'storageclass', 'unknown', '<<', '1',
];
const ACTIONS: readonly string[] = [
  '{type: skip}', '{type: snapshot, parameters: {}}', '{type: custom, parameters: {a: [1, {b: c}]}}', '{type: "fs-backup"}', '{type: Skip}',
  '{type: delete}', '{}', 'null', '{type: custom, parameters: [a]}', '{type: custom, parameters: null}', '{type: skip, other: 1}', 'skip',
  '{type: [skip]}', '{type: skip, type: skip}', '{type: custom, parameters: {1: a, b: *no}}',
];
const HEADS: readonly string[] = [
  'version: v1\n', 'version: v1\n', 'version: v1\n', 'version: v1\n', 'version: v1\n', 'version: v1\n', '', 'version: v2\n', 'version: "v1"\n', 'version: 1\n',
  'version: [v1]\n', 'version: null\n', '---\nversion: v1\n', '%YAML 1.2\n---\nversion: v1\n', 'version: v1\nversion: v1\n', '# x\nversion: &v v1\n',
];
const TAILS: readonly string[] = [
  '', '', '', '', '', '', '', 'more: 1\n', '---\nother: document\n', '...\n', 'includeExcludePolicy: {}\n', 'includeExcludePolicy: null\n',
  'includeExcludePolicy: {includedClusterScopedResources: [a], excludedClusterScopedResources: [b]}\n',
  'includeExcludePolicy: {includedClusterScopedResources: [a], excludedClusterScopedResources: [a]}\n',
  'includeExcludePolicy: {includedNamespaceScopedResources: ["*"]}\n', 'includeExcludePolicy: {includedResources: [a]}\n', 'includeExcludePolicy: [a]\n',
  'clusterScopedFilterPolicy: {}\n', 'clusterScopedFilterPolicy: {resourceFilters: []}\n', 'clusterScopedFilterPolicy: {resourceFilters: [{kinds: []}]}\n',
  'clusterScopedFilterPolicy: {resourceFilters: [{kinds: [a], names: ["x*", "[a-c]?"]}]}\n', 'clusterScopedFilterPolicy: {resourceFilters: [{kinds: [a]}, {kinds: [a]}]}\n',
  'clusterScopedFilterPolicy: {resourceFilters: [{kinds: [a], names: ["[x"]}]}\n', 'clusterScopedFilterPolicy: {resourceFilters: [{kinds: [a], names: ["{x"]}]}\n',
  'namespacedFilterPolicies: []\n', 'namespacedFilterPolicies: [{namespaces: []}]\n', 'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{}, {kinds: ["*"]}]}]\n', 'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{names: [x]}]}]\n',
  'namespacedFilterPolicies: [{namespaces: ["a**"], resourceFilters: [{}]}]\n', 'namespacedFilterPolicies: [{namespaces: ["a[b"], resourceFilters: [{}]}]\n',
  'namespacedFilterPolicies: [{namespaces: ["{a}"], resourceFilters: [{}]}]\n', 'namespacedFilterPolicies: [{namespaces: ["a[]"], resourceFilters: [{}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a, a], resourceFilters: [{}]}]\n', 'namespacedFilterPolicies: [{namespaces: ["a[bc]*"], resourceFilters: [{kinds: [p, p]}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchLabels: {a: b}}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchLabels: {a: b}}, orLabelSelectors: [{}]}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchLabels: {"a b": b}}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchLabels: {a: "b c"}}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchExpressions: [{key: a, operator: In}]}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchExpressions: [{key: a, operator: Like}]}}]}]\n',
  'namespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{labelSelector: {matchExpressions: [{}]}}]}]\n',
];

/** Documents near those that are right: each has a few words from the lists above. */
export function makeDocuments(seed: number, count: number): string[] {
  const { oneOf, chance, below } = dice(seed);
  const mostly = (usual: string, list: readonly string[], share: number): string =>
    chance(share) ? usual : oneOf(list);
  return Array.from({ length: count }, () => {
    const rules = Array.from({ length: below(3) }, () => {
      if (chance(0.03)) return '-\n';
      const keys = Array.from({ length: below(3) }, () => oneOf(KEYS));
      const conditions = keys.map((key) => `    ${key}: ${oneOf(SCALARS)}\n`);
      const head = conditions.length > 0 ? `\n${conditions.join('')}` : oneOf([' {}\n', ' null\n']);
      const action = `  action: ${mostly('{type: skip}', ACTIONS, 0.8)}\n`;
      return `- conditions:${head}${chance(0.97) ? action : ''}`;
    });
    const none = mostly('', ['volumePolicies: []\n', 'volumePolicies: null\n', 'volumePolicies: {}\n'], 0.5);
    const list = rules.length > 0 ? `volumePolicies:\n${rules.join('')}` : none;
    return `${mostly('version: v1\n', HEADS, 0.8)}${list}${mostly('', TAILS, 0.6)}`;
  });
}
