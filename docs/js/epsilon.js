// What the best membership guess can gain, by Gaussian differential privacy. The same formulas as diff2/privacy/accounting.py.
function tail(x) { // P(Z > x); relative error below 1.2e-7 (Numerical Recipes, erfcc)
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + z / 2)
  const c = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277]
  const sum = c.reduceRight((acc, one) => acc * t + one, 0)
  const upper = t * Math.exp(-z * z + sum) / 2
  return x >= 0 ? upper : 1 - upper
}
const cdf = (x) => tail(-x)
function bisect(above, low, high) {
  for (let i = 0; i < 100; i++) { const mid = (low + high) / 2; above(mid) ? high = mid : low = mid }
  return (low + high) / 2
}
const quantile = (p) => bisect((x) => cdf(x) > p, -10, 10)
const deltaOf = (mu, epsilon) => cdf(-epsilon / mu + mu / 2) - Math.exp(epsilon) * cdf(-epsilon / mu - mu / 2)
const muOf = (epsilon, delta) => bisect((mu) => deltaOf(mu, epsilon) > delta, 1e-4, 20)
const found = (alpha, mu) => cdf(quantile(alpha) + mu)

function words(epsilon) {
  if (epsilon <= 1) return "Strong: hardly better than guessing."
  if (epsilon <= 5) return "Common in practice. Most people cannot be found; some can."
  return epsilon <= 10 ? "Weak: a good part of the people could be found." : "Says little."
}

function show(box) {
  const [slider, chosen, output] = ["input", "select", "output"].map((one) => box.querySelector(one))
  const epsilon = Math.pow(10, Number(slider.value)), mu = muOf(epsilon, Number(chosen.value))
  output.textContent = epsilon.toPrecision(2)
  for (const cell of box.querySelectorAll("dd")) cell.textContent = (100 * found(Number(cell.dataset.alpha), mu)).toFixed(1) + " %"
  box.querySelector(".epsilon-words").textContent = words(epsilon)
}

if (typeof document !== "undefined") {
  const start = () => document.querySelectorAll(".epsilon").forEach((box) => { box.oninput = () => show(box); show(box) })
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", start) : start()
}
if (typeof module !== "undefined") module.exports = { muOf, found }
