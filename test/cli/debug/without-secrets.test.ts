import { describe, expect, it } from 'vitest';
import {
  objectWithoutSecrets,
  textWithoutSecrets,
} from '../../../src/cli/debug/without-secrets.ts';
import { cpuMsOf } from '../../support/cpu-time.ts';

/** No secret of these tests has it by chance. */
const HIDDEN = 'Wq7hiddenZx9';

describe('text without secrets', () => {
  it.each([
    `password=${HIDDEN}`,
    `"password": "${HIDDEN}"`,
    `repository_password: ${HIDDEN}`,
    `aws_secret_access_key = ${HIDDEN}`,
    `secretAccessKey=${HIDDEN}`,
    `AZURE_STORAGE_ACCOUNT_ACCESS_KEY=${HIDDEN}`,
    `AZURE_CLIENT_SECRET=${HIDDEN}`,
    `api_key: '${HIDDEN}'`,
    `session_token=${HIDDEN}`,
    `--repo-password=${HIDDEN} --other`,
    `--token ${HIDDEN}`,
    `Authorization: Bearer ${HIDDEN}`,
    `authorization: Basic ${HIDDEN}=`,
    `https://user:${HIDDEN}@minio:9000/bucket`,
    `https://minio/b?X-Amz-Signature=${HIDDEN}&x=1`,
    `https://minio/b?X-Amz-Security-Token=${HIDDEN}`,
    `https://a.blob/c?sv=1&sig=${HIDDEN}`,
    `token eyJhbGciOiJSUzI1NiJ9.eyJ${HIDDEN}.sig`,
    `-----BEGIN RSA PRIVATE KEY-----\n${HIDDEN}\n-----END RSA PRIVATE KEY-----`,
    // A log that ends in the middle of a key.
    `-----BEGIN PRIVATE KEY-----\n${HIDDEN}`,
    // Values that have blanks, commas, or quotes themselves.
    `"password": "correct horse ${HIDDEN}",`,
    `{"password":"a,b;c&${HIDDEN}"}`,
    `{"apiKey":"a\\"b ${HIDDEN}"}`,
    `msg="{\\"token\\":\\"a b ${HIDDEN}\\"}"`,
    `password=a,${HIDDEN}`,
    `aws_secret_access_key = a,${HIDDEN}`,
    `--repo-password "a b ${HIDDEN}"`,
    `settings:\npassword: correct horse ${HIDDEN}\nnext`,
    `settings:\n  password: |\n    ${HIDDEN}\nnext`,
    `settings:\n  token:\n    ${HIDDEN}\nnext`,
    `settings:\n  privateKey: |\n    first\n\n    ${HIDDEN}\nnext`,
    `settings:\n  client-key-data: >-\n    first\n     ${HIDDEN}\nnext`,
    `https://user:a@${HIDDEN}@minio:9000/bucket`,
    `{"auths":{"registry":{"auth":"${HIDDEN}"}}}`,
    `client-key-data: ${HIDDEN}`,
    `sse-customer-key=${HIDDEN}`,
    `privateKey: ${HIDDEN}`,
  ])('hides what is in %j', (text) => {
    const shown = textWithoutSecrets(`before ${text} after`);
    expect(shown).not.toContain(HIDDEN);
    expect(shown).toContain('***');
    expect(shown.startsWith('before ')).toBe(true);
  });

  it('hides keys of AWS by their form', () => {
    expect(textWithoutSecrets('by AKIAIOSFODNN7EXAMPLE now')).toBe('by *** now');
  });

  it.each([
    'the Secret velero/cloud-credentials has no key "cloud"',
    'time="2026-11-26T08:00:00Z" level=info msg="snapshot k1b2c3 saved: 12 files, 3.4 MiB" backup=velero/b1',
    'https://minio:9000/bucket/backups/b1?list-type=2&prefix=x',
  ])('leaves %j as it is', (text) => {
    expect(textWithoutSecrets(text)).toBe(text);
  });

  it('takes no long time for text that nearly looks like a secret', async () => {
    const cpuMs = await cpuMsOf(() => {
      for (const text of [
        '-----BEGIN '.repeat(20_000),
        'a:'.repeat(100_000),
        'token'.repeat(50_000),
        'token="'.repeat(20_000),
        "token='".repeat(20_000),
        `token=\\"x'`.repeat(20_000),
        'https://a@'.repeat(50_000),
      ]) {
        textWithoutSecrets(text);
      }
    });
    expect(cpuMs).toBeLessThan(5000);
  });
});

describe('objects without secrets', () => {
  it('hides values by the names of variables and settings, and keeps what only names a Secret', () => {
    const pod = {
      metadata: {
        name: 'server',
        managedFields: [{ manager: 'kubectl' }],
        annotations: {
          'kubectl.kubernetes.io/last-applied-configuration': `{"x":"${HIDDEN}"}`,
          note: 'kept',
        },
      },
      spec: {
        containers: [
          {
            args: ['server', `--repo-password=${HIDDEN}`, '--token', HIDDEN, '--access-key', '-v'],
            env: [
              { name: 'AWS_SECRET_ACCESS_KEY', value: HIDDEN },
              { name: 'MY_TOKEN', value: HIDDEN },
              // The object store in Velero's own examples has this variable.
              { name: 'MINIO_SECRET_KEY', value: HIDDEN },
              { name: 'DB_PASS', value: HIDDEN },
              { name: 'NODE_NAME', value: 'n1' },
              { name: 'PASSWORD', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } },
            ],
          },
        ],
        volumes: [{ name: 'cloud', secret: { secretName: 'cloud-credentials' } }],
        credential: { name: 'cloud-credentials', key: 'cloud' },
        config: { region: 'eu', accessKey: HIDDEN, profile: 'p' },
      },
      data: { 'repo-password': HIDDEN, settings: `a: 1\npassword: ${HIDDEN}\n` },
    };
    const text = JSON.stringify(objectWithoutSecrets(pod));
    expect(text).not.toContain(HIDDEN);
    expect(text).not.toContain('managedFields');
    expect(objectWithoutSecrets(pod)).toMatchObject({
      metadata: { name: 'server', annotations: { note: 'kept' } },
      spec: {
        containers: [
          {
            args: ['server', '--repo-password=***', '--token', '***', '--access-key', '-v'],
            env: [
              { name: 'AWS_SECRET_ACCESS_KEY', value: '***' },
              { name: 'MY_TOKEN', value: '***' },
              { name: 'MINIO_SECRET_KEY', value: '***' },
              { name: 'DB_PASS', value: '***' },
              { name: 'NODE_NAME', value: 'n1' },
              { name: 'PASSWORD', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } },
            ],
          },
        ],
        volumes: [{ name: 'cloud', secret: { secretName: 'cloud-credentials' } }],
        credential: { name: 'cloud-credentials', key: 'cloud' },
        config: { region: 'eu', accessKey: '***', profile: 'p' },
      },
    });
  });

  it('shows the first word of a hook and the number of the others', () => {
    const exec = { container: 'db', command: ['/bin/sh', '-c', `mysql -p${HIDDEN}`] };
    const init = { name: 'i', image: 'i', command: ['sh', HIDDEN], args: [HIDDEN] };
    const hooks = {
      metadata: {
        annotations: {
          'pre.hook.backup.velero.io/command': `["/bin/bash", "-c", "dump ${HIDDEN}"]`,
          'post.hook.restore.velero.io/command': `/bin/load ${HIDDEN}`,
        },
      },
      spec: {
        hooks: {
          resources: [
            { pre: [{ exec }], postHooks: [{ exec }, { init: { initContainers: [init] } }] },
          ],
        },
      },
    };
    const text = JSON.stringify(objectWithoutSecrets(hooks));
    expect(text).not.toContain(HIDDEN);
    expect(objectWithoutSecrets(hooks)).toMatchObject({
      metadata: {
        annotations: { 'pre.hook.backup.velero.io/command': ['/bin/bash', '*** (2 more words)'] },
      },
      spec: {
        hooks: { resources: [{ pre: [{ exec: { command: ['/bin/sh', '*** (2 more words)'] } }] }] },
      },
    });
  });

  it('hides the value of a variable with any name, but those that hold none', () => {
    const env = [
      { name: 'DATABASE_URL', value: HIDDEN },
      { name: 'GREETING', value: HIDDEN },
      { name: 'RETRIES', value: '12' },
      { name: 'VELERO_NAMESPACE', value: 'velero' },
      { name: 'AWS_SHARED_CREDENTIALS_FILE', value: '/credentials/cloud' },
    ];
    expect(objectWithoutSecrets({ env })).toEqual({
      env: [
        { name: 'DATABASE_URL', value: '***' },
        { name: 'GREETING', value: '***' },
        ...env.slice(2),
      ],
    });
  });

  it('hides what resource modifiers set, and keeps which objects and fields they are about', () => {
    const rules = `version: v1
resourceModifierRules:
- conditions:
    groupResource: secrets
    namespaces:
    - app
  patches:
  - operation: replace
    path: "/data/greeting"
    value: ${HIDDEN}
  - operation: add
    path: "/data/list"
    value:
    - ${HIDDEN}
  - {operation: add, path: /x, value: ${HIDDEN}}
  mergePatches:
  - patchData: |
      data:
        greeting: ${HIDDEN}

        other: ${HIDDEN}
- conditions:
    groupResource: configmaps
`;
    const shown = objectWithoutSecrets({ data: { 'rules.yaml': rules } }) as {
      data: Record<string, string>;
    };
    const text = shown.data['rules.yaml'] ?? '';
    expect(text).not.toContain(HIDDEN);
    for (const kept of [
      'groupResource: secrets',
      '- app',
      '/data/list',
      'groupResource: configmaps',
    ])
      expect(text).toContain(kept);
    const json = JSON.stringify({ resourceModifierRules: [{ patches: [{ value: HIDDEN }] }] });
    expect(JSON.stringify(objectWithoutSecrets({ data: { json } }))).not.toContain(HIDDEN);
  });
});
