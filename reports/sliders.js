// Sliders that stand for the number beside them, on a linear or a logarithmic scale.

const sliderOf = (control) => control.parentElement.querySelector("input[type=range]");

function placed(slider, value) {
  const [low, high] = [+slider.dataset.low, +slider.dataset.high];
  const share = slider.dataset.scale === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  if (Number.isFinite(share)) slider.value = Math.round(share * slider.max);
}

function valueOf(slider) {
  const [low, high, share] = [+slider.dataset.low, +slider.dataset.high, slider.value / slider.max];
  const value = slider.dataset.scale === "log" ? low * (high / low) ** share : low + (high - low) * share;
  return String("whole" in slider.dataset ? Math.round(value) : Number(value.toPrecision(3)));
}
