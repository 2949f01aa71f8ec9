import ts from 'typescript';
import tseslint from 'typescript-eslint';

const { IndexKind, TypeFlags } = ts;

/** Time, timers, randomness and the environment have one home each; see ARCHITECTURE.md. */
const oneHome = [
  { object: 'process', property: 'env', message: 'The environment is read in config/.' },
  { object: 'Date', property: 'now', message: 'Time comes from base/clock.ts.' },
];

/**
 * Objects have a prototype: `labels['constructor']` is a function, and writing `data['__proto__']`
 * keeps nothing. Keys that users choose are looked up with `lookup` of base/, which sees own
 * properties only.
 */
const ownKeys = {
  meta: {
    type: 'problem',
    schema: [],
    messages: {
      read: 'This may find a member of the prototype: use lookup() of base/, or a Map.',
      write: 'This keeps nothing under the key "__proto__": use define() of base/, or a Map.',
      in: 'This is true for members of the prototype: use Object.hasOwn().',
    },
  },
  create(context) {
    const services = context.sourceCode.parserServices;
    const checker = services.program.getTypeChecker();
    const isText = (node) => {
      const type = services.getTypeAtLocation(node);
      return (type.isUnion() ? type.types : [type]).some(
        (each) => (each.flags & (TypeFlags.String | TypeFlags.TemplateLiteral)) !== 0,
      );
    };
    const isRecord = (node) => {
      const type = checker.getNonNullableType(services.getTypeAtLocation(node));
      return (type.isUnion() ? type.types : [type]).some(
        (each) => checker.getIndexInfoOfType(each, IndexKind.String) !== undefined,
      );
    };
    const isFixed = ({ value }) => value.raw !== '';
    const isWritten = (node) =>
      (node.parent.type === 'AssignmentExpression' && node.parent.left === node) ||
      node.parent.type === 'UpdateExpression';
    return {
      MemberExpression(node) {
        if (!node.computed || !isText(node.property) || !isRecord(node.object)) return;
        // A text that is partly fixed, such as an annotation with its prefix, is no member.
        if (node.property.type === 'TemplateLiteral' && node.property.quasis.some(isFixed)) return;
        const above = node.parent.type === 'ChainExpression' ? node.parent.parent : node.parent;
        if (above.type === 'UnaryExpression' && above.operator === 'delete') return;
        context.report({ node, messageId: isWritten(node) ? 'write' : 'read' });
      },
      BinaryExpression(node) {
        if (node.operator !== 'in' || node.left.type === 'PrivateIdentifier') return;
        if (isText(node.left)) context.report({ node, messageId: 'in' });
      },
    };
  },
};

export default tseslint.config(
  {
    ignores: [
      'dist/',
      'vitest.config.ts',
      '**/*.d.ts',
      'node_modules/',
      'src/codec/wasm/kernels.as.ts',
      'bench/results/',
    ],
  },
  ...tseslint.configs.strictTypeChecked,
  {
    files: ['**/*.ts'],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // `as` with a reason is how index signatures and wire formats are narrowed here.
      '@typescript-eslint/no-non-null-assertion': 'error',
      '@typescript-eslint/no-unnecessary-type-parameters': 'off',
      '@typescript-eslint/no-dynamic-delete': 'off',
      '@typescript-eslint/only-throw-error': ['error', { allowThrowingUnknown: true }],
      // The rule takes `.at()` and parsed input for always defined; the compiler knows better.
      '@typescript-eslint/no-unnecessary-condition': 'off',
      '@typescript-eslint/no-misused-spread': 'off',
      'no-restricted-syntax': [
        'error',
        {
          selector: 'ObjectExpression > SpreadElement > ObjectExpression',
          message: 'Write the fields themselves: a spread literal hides misspelled fields.',
        },
      ],
    },
  },
  {
    files: ['src/**/*.ts'],
    ignores: ['src/config/**', 'src/base/**', 'src/codec/wasm/build.ts'],
    rules: { 'no-restricted-properties': ['error', ...oneHome] },
  },
  {
    files: ['src/**/*.ts'],
    ignores: ['src/base/own-properties.ts'],
    plugins: { longshore: { rules: { 'own-keys': ownKeys } } },
    rules: { 'longshore/own-keys': 'error' },
  },
  { files: ['**/*.js', '**/*.cjs', '**/*.mjs'], ...tseslint.configs.disableTypeChecked },
);
