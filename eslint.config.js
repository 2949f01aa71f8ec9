import tseslint from 'typescript-eslint';

/** Time, timers, randomness and the environment have one home each; see ARCHITECTURE.md. */
const oneHome = [
  { object: 'process', property: 'env', message: 'The environment is read in config/.' },
  { object: 'Date', property: 'now', message: 'Time comes from base/clock.ts.' },
];

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
    },
  },
  {
    files: ['src/**/*.ts'],
    ignores: ['src/config/**', 'src/base/**', 'src/codec/wasm/build.ts'],
    rules: { 'no-restricted-properties': ['error', ...oneHome] },
  },
  { files: ['**/*.js', '**/*.cjs', '**/*.mjs'], ...tseslint.configs.disableTypeChecked },
);
